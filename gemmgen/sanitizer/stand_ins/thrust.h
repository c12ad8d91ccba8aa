// The namespace of Thrust, and the base classes of functors.
#ifndef GEMMGEN_THRUST
#define GEMMGEN_THRUST
namespace thrust {
template <class A, class R> struct unary_function { using argument_type = A; using result_type = R; };
template <class A, class B, class R> struct binary_function {
  using first_argument_type = A;
  using second_argument_type = B;
  using result_type = R;
};
namespace placeholders {}
}
#endif
