// Namespaces of libraries of the host: extensions of PyTorch, bindings, tests.
#pragma once
namespace torch { namespace nn { namespace functional {} } namespace indexing {} }
namespace at { namespace native {} namespace cuda {} }
namespace c10 { namespace cuda {} }
namespace pybind11 { namespace literals {} }
namespace cv {}
namespace boost {}
