// NVRTC for programs that compile kernels themselves. All calls reach the real library, except that code for a real architecture
// (sm_80) becomes PTX, which the emulator reads, and that lines of the source are kept.

#include <glob.h>

namespace {

constexpr int NVRTC_INTERNAL_ERROR = 11;

void* nvrtc_library() {
  static void* library = [] {
    const char* path = setting("GEMMGEN_NVRTC");
    std::string builtins = path ? path : "";
    builtins = builtins.substr(0, builtins.rfind('/') + 1) + "libnvrtc-builtins.so.*";
    glob_t found;
    // NVRTC finds its other half by name only if that is loaded already.
    if (path && !glob(builtins.c_str(), 0, nullptr, &found)) {
      for (size_t i = 0; i < found.gl_pathc; ++i) dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
      globfree(&found);
    }
    return path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  }();
  if (!library) unsupported("NVRTC, whose library was not found: pip install 'nvidia-cuda-nvrtc>=13,<14'");
  return library;
}

template <class... Given> int real_nvrtc(const char* name, Given... given) {
  void* library = nvrtc_library();
  auto call = library ? (int (*)(Given...))dlsym(library, name) : nullptr;
  return call ? call(given...) : NVRTC_INTERNAL_ERROR;
}

}  // namespace

API const char* nvrtcGetErrorString(int result) {
  void* library = nvrtc_library();
  auto call = library ? (const char* (*)(int))dlsym(library, "nvrtcGetErrorString") : nullptr;
  return call ? call(result) : "NVRTC_ERROR_INTERNAL_ERROR";
}
API int nvrtcVersion(int* major, int* minor) { return real_nvrtc("nvrtcVersion", major, minor); }
API int nvrtcGetNumSupportedArchs(int* count) { return real_nvrtc("nvrtcGetNumSupportedArchs", count); }
API int nvrtcGetSupportedArchs(int* found) { return real_nvrtc("nvrtcGetSupportedArchs", found); }
API int nvrtcCreateProgram(void** made, const char* text, const char* name, int headers, const char* const* texts, const char* const* names) {
  return real_nvrtc("nvrtcCreateProgram", made, text, name, headers, texts, names);
}
API int nvrtcDestroyProgram(void** program) { return real_nvrtc("nvrtcDestroyProgram", program); }
API int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  std::vector<std::string> words(options, options + count);
  bool names_architecture = false, has_lines = false;
  for (auto& word : words) {
    auto begins = [&](const char* with) { return word.rfind(with, 0) == 0; };
    size_t at = word.find("sm_");
    if (at != std::string::npos && (names_architecture || begins("-arch=") || begins("--gpu-architecture="))) word.replace(at, 3, "compute_");
    names_architecture = word == "-arch" || word == "--gpu-architecture";
    has_lines = has_lines || begins("-lineinfo") || begins("--generate-line-info");
  }
  if (!has_lines) words.push_back("--generate-line-info");
  std::vector<const char*> given;
  for (auto& word : words) given.push_back(word.c_str());
  return real_nvrtc("nvrtcCompileProgram", program, (int)given.size(), given.data());
}
API int nvrtcGetPTXSize(void* program, size_t* bytes) { return real_nvrtc("nvrtcGetPTXSize", program, bytes); }
API int nvrtcGetPTX(void* program, char* text) { return real_nvrtc("nvrtcGetPTX", program, text); }
API int nvrtcGetCUBINSize(void* program, size_t* bytes) { return nvrtcGetPTXSize(program, bytes); }
API int nvrtcGetCUBIN(void* program, char* text) { return nvrtcGetPTX(program, text); }
API int nvrtcGetProgramLogSize(void* program, size_t* bytes) { return real_nvrtc("nvrtcGetProgramLogSize", program, bytes); }
API int nvrtcGetProgramLog(void* program, char* text) { return real_nvrtc("nvrtcGetProgramLog", program, text); }
API int nvrtcAddNameExpression(void* program, const char* expression) { return real_nvrtc("nvrtcAddNameExpression", program, expression); }
API int nvrtcGetLoweredName(void* program, const char* expression, const char** name) {
  return real_nvrtc("nvrtcGetLoweredName", program, expression, name);
}
