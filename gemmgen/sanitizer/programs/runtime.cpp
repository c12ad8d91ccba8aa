// Replacement of libcudart for `gemmgen run`: device memory is a file shared with the emulator's process, which gets each
// launch over a socket. Compiled by the host compiler against the CUDA headers that the program is compiled with.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
typedef cudaError_t Error;

namespace {

// Numbers of the messages; gemmgen/sanitizer/programs/messages.py has the same.
enum Operation : uint32_t {
  LOAD_MODULE = 1, FIND_VARIABLE, FIND_KERNEL, LAUNCH, ALLOCATE, RELEASE, COPIED, STREAM, TENSOR_MAP, TEXTURE, MISUSE, UNSUPPORTED, BLAS, FORGET,
  PLACE_CONTENTS
};
enum StreamEvent : uint32_t { CREATE = 1, CREATE_UNORDERED, DESTROY, SYNCHRONIZE, SYNCHRONIZE_ALL, RECORD, WAIT, SYNCHRONIZE_EVENT };
enum MemoryKind : uint32_t { DEVICE, MANAGED, PINNED };

const uintptr_t BASE = 0x7f0000000000ull;  // GLOBAL_BASE of the emulator
const size_t PAGE = 4096;
const int FRAMES = 12;

struct Kernel {
  uint64_t module;
  std::string name;
  bool known = false;
  uint32_t shared_bytes = 0, local_bytes = 0, max_threads = 1024, parameter_bytes = 0;
  std::vector<std::pair<uint32_t, uint32_t>> parameters;  // offset, size
  int dynamic_limit = 0;
};
struct Variable { uint64_t module; std::string name; uint64_t address = 0, size = 0; };
struct Configuration { dim3 grid, block; size_t shared; cudaStream_t stream; };
struct Allocation { size_t bytes; MemoryKind kind; const void* context = nullptr; };
// Work of a stream: it runs in the stream that it is given, which for a graph is the one that the graph is launched into.
typedef std::function<Error(cudaStream_t)> Step;
// Memory that a graph allocates keeps its address while the graph exists; it is live from its allocation to its release by a node or by the host.
struct GraphMemory { void* pointer; size_t bytes; bool live = false; ~GraphMemory(); };
// The value that decides on conditional nodes. It lies in device memory, whose address is the handle.
struct Condition { void* place; unsigned value; bool is_reset; ~Condition(); };
struct Graph {
  std::vector<Step> steps;
  std::vector<std::shared_ptr<Condition>> conditions;
};
struct Stream { uint32_t id; unsigned flags; int priority; Graph* capture; };
struct Event { uint32_t id; double milliseconds; bool recorded; const Graph* capture; };
struct Registered { void* device; size_t bytes; };
struct Array { cudaChannelFormatDesc format; cudaExtent extent; void* data; size_t element_bytes; unsigned flags; };

std::recursive_mutex guard;
int channel = -1;
size_t arena = 0;
std::atomic<bool> contents_wait{false};
char* window = nullptr;  // the same memory at another address, which this library may always touch
std::map<const void*, Kernel*> kernels;
std::set<const Kernel*> kernel_set;
std::map<const void*, Variable*> variables;
std::map<uintptr_t, Allocation> allocations;
std::map<uintptr_t, Registered> registered;  // host memory that kernels reach, by its first page
int memory_file = -1;
std::map<uint64_t, std::pair<cudaResourceDesc, cudaTextureDesc>> views;
std::vector<std::pair<void**, Variable*>> managed_variables;
std::set<Stream*> streams;
std::set<Event*> events;
std::map<uintptr_t, GraphMemory*> graph_memory;
uint64_t graph_bytes = 0, most_graph_bytes = 0;
uint32_t next_stream = 1, next_event = 1;
Error sticky = cudaSuccess;
thread_local std::vector<Configuration> configurations;
thread_local Error last_error = cudaSuccess;
thread_local bool has_primary_context = false;  // the runtime has made its context current
std::atomic<bool> runtime_keeps_context{false};  // and keeps it alive until cudaDeviceReset
thread_local int outside_runtime = 0;
// Work that is no call of the runtime, so makes no context current: registration before main, calls of the driver.
struct OutsideRuntime { OutsideRuntime() { ++outside_runtime; } ~OutsideRuntime() { --outside_runtime; } };
const void* current_of_driver();  // the context that a call of the driver works in

// What gemmgen says to this run in the environment. With GEMMGEN_HIDES the program finds nothing of it there.
std::map<std::string, std::string>& settings() {
  static std::map<std::string, std::string> own;
  return own;
}
__attribute__((constructor)) void take_settings(int, char**, char** variables) {
  bool hides = false;
  for (char** each = variables; *each; ++each) hides |= !strncmp(*each, "GEMMGEN_HIDES=", 14);
  for (char** each = variables; *each;) {
    const char* end = strncmp(*each, "GEMMGEN_", 8) ? nullptr : strchr(*each, '=');
    if (end) settings()[std::string(*each, end - *each)] = end + 1;
    if (hides && (end || !strncmp(*each, "LD_LIBRARY_PATH=", 16))) {
      memset(*each, 0, strlen(*each));
      for (char** next = each; (next[0] = next[1]); ++next) {}
    } else {
      ++each;
    }
  }
}
const char* setting(const char* name) {
  auto found = settings().find(name);
  return found == settings().end() ? nullptr : found->second.c_str();
}
double setting(const char* name, double otherwise) {
  const char* text = setting(name);
  return text ? atof(text) : otherwise;
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

Error fail(Error error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void say(const char* format, ...) {
  va_list list;
  va_start(list, format);
  fflush(stdout);
  fprintf(stderr, "[gemmgen] ");
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
}

// -- messages ---------------------------------------------------------------------------------------------------------

bool transfer(bool sends, char* data, size_t count) {
  while (count) {
    ssize_t done = sends ? send(channel, data, count, MSG_NOSIGNAL) : recv(channel, data, count, 0);
    if (done <= 0) return false;
    data += done;
    count -= done;
  }
  return true;
}

template <class T> std::string raw(const T& value) { return std::string((const char*)&value, sizeof value); }

void start();

// Sends a message and returns the status of the answer; `answer` gets its body.
int ask(Operation operation, const std::string& body, std::string* answer = nullptr) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  start();
  std::string message = raw((uint32_t)operation) + raw((uint32_t)body.size()) + body;
  int32_t status;
  uint32_t size;
  std::string text;
  bool fine = transfer(true, &message[0], message.size()) && transfer(false, (char*)&status, 4) && transfer(false, (char*)&size, 4);
  if (fine) {
    text.resize(size);
    fine = !size || transfer(false, &text[0], size);
  }
  if (!fine) {
    say("there is no connection to the emulator: the program has closed it, or the emulator has ended");
    kill(getpid(), SIGKILL);  // no exit status would differ from those of programs
  }
  if (answer) *answer = text;
  return status;
}

// The line of a Python program that led here, as a separate frame: the offset is the line. Empty outside of Python.
std::string python_caller() {
  typedef void* Object;
  static auto acquire = (int (*)())dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  static auto let_go = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
  static auto top = (Object(*)())dlsym(RTLD_DEFAULT, "PyEval_GetFrame");
  static auto code_of = (Object(*)(Object))dlsym(RTLD_DEFAULT, "PyFrame_GetCode");
  static auto back = (Object(*)(Object))dlsym(RTLD_DEFAULT, "PyFrame_GetBack");
  static auto line_of = (int (*)(Object))dlsym(RTLD_DEFAULT, "PyFrame_GetLineNumber");
  static auto attribute_of = (Object(*)(Object, const char*))dlsym(RTLD_DEFAULT, "PyObject_GetAttrString");
  static auto text_of = (const char* (*)(Object))dlsym(RTLD_DEFAULT, "PyUnicode_AsUTF8");
  static auto is_ready = (int (*)())dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  if (!acquire || !let_go || !top || !code_of || !back || !line_of || !attribute_of || !text_of || !is_ready || !is_ready()) return "";
  int state = acquire();
  std::string found;
  // References to the few objects looked at are kept: Python's own counting is not worth the risk here.
  for (Object frame = top(); frame && found.empty(); frame = back(frame)) {
    Object name = attribute_of(code_of(frame), "co_filename");
    const char* file = name ? text_of(name) : nullptr;
    if (!file || file[0] == '<' || strstr(file, "site-packages") || strstr(file, "/lib/python")) continue;
    found = raw((uint64_t)line_of(frame)) + raw((uint32_t)strlen(file)) + file;
  }
  let_go(state);
  return found;
}

// The calls that led here, as places in files: the report names lines of the program by them.
std::string callers() {
  std::string of_python = python_caller();
  if (!of_python.empty()) return raw((uint32_t)1) + of_python;
  void* frames[FRAMES];
  int count = backtrace(frames, FRAMES);
  std::string found;
  uint32_t kept = 0;
  for (int i = 1; i < count; ++i) {
    Dl_info info;
    if (!dladdr(frames[i], &info) || !info.dli_fname) continue;
    if (strstr(info.dli_fname, "libcudart") || strstr(info.dli_fname, "libc.so")) continue;
    std::string file(info.dli_fname);
    found += raw((uint64_t)((char*)frames[i] - (char*)info.dli_fbase)) + raw((uint32_t)file.size()) + file;
    if (++kept == 4) break;
  }
  return raw(kept) + found;
}

void misuse(const char* code, const char* format, ...) {
  char text[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  std::string name(code), message(text);
  ask(MISUSE, raw((uint32_t)name.size()) + name + raw((uint32_t)message.size()) + message + callers());
}

struct sigaction previous_handler;
std::map<uintptr_t, std::pair<size_t, std::string>> guarded;  // pages that work in flight writes, and its name

// The host has waited: it may touch everything again.
void unguard() {
  for (auto& each : guarded) mprotect((void*)each.first, each.second.first, PROT_READ | PROT_WRITE);
  guarded.clear();
}

// True if the instruction that faulted is an atomic operation of the host: it may run beside atomic operations of a kernel.
bool is_atomic(const void* context) {
#ifdef __x86_64__
  const unsigned char* code = (const unsigned char*)((const ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
  for (int byte = 0; byte < 4; ++byte) {
    if (code[byte] == 0xF0 || code[byte] == 0x86 || code[byte] == 0x87) return true;  // lock, xchg
    bool prefix = code[byte] == 0x66 || code[byte] == 0xF2 || code[byte] == 0xF3 || (code[byte] & 0xF0) == 0x40;
    if (!prefix) return false;
  }
#endif
  return false;
}

void faulted(int number, siginfo_t* info, void* context) {
  uintptr_t address = (uintptr_t)info->si_addr;
  auto found = guarded.upper_bound(address);
  if (found != guarded.begin() && (--found, address < found->first + found->second.first)) {
    std::string writer = found->second.second;
    unguard();
    if (is_atomic(context)) return;
    misuse("host-race", "host code touches memory that %s writes, before it has waited for it", writer.c_str());
    return;
  }
  if (address >= BASE && address < BASE + arena) {
    misuse("host-access", "host code touches device memory at 0x%lx, which is allocated with cudaMalloc, or freed", (unsigned long)address);
  }
  sigaction(SIGSEGV, &previous_handler, nullptr);
  raise(number);
}

void start() {
  if (!outside_runtime) {
    has_primary_context = true;
    runtime_keeps_context = true;
  }
  if (channel >= 0) return;
  const char* socket_text = setting("GEMMGEN_SOCKET");
  const char* memory_text = setting("GEMMGEN_MEMORY");
  const char* arena_text = setting("GEMMGEN_ARENA");
  if (!socket_text || !memory_text || !arena_text) {
    fprintf(stderr, "this program's CUDA runtime is gemmgen's emulator: start it with gemmgen run\n");
    _exit(2);
  }
  channel = atoi(socket_text);
  arena = strtoull(arena_text, nullptr, 10);
  int file = memory_file = atoi(memory_text);
  void* at = mmap((void*)BASE, arena, PROT_NONE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
  window = (char*)mmap(nullptr, arena, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at != (void*)BASE || window == MAP_FAILED) {
    say("device memory cannot be mapped");
    kill(getpid(), SIGKILL);
  }
  setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  struct sigaction action = {};
  action.sa_sigaction = faulted;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous_handler);
}

void unsupported(const char* what) {
  std::string name(what);
  ask(UNSUPPORTED, raw((uint32_t)name.size()) + name + callers());
  fail(cudaErrorNotSupported);
}

// -- streams ----------------------------------------------------------------------------------------------------------

bool is_stream(cudaStream_t stream) { return streams.count((Stream*)stream) != 0; }

uint32_t id_of(cudaStream_t stream) { return is_stream(stream) ? ((Stream*)stream)->id : 0; }

void tell(StreamEvent what, uint32_t stream, uint32_t event = 0) {
  ask(STREAM, raw((uint32_t)what) + raw(stream) + raw(event));
  if (what == SYNCHRONIZE || what == SYNCHRONIZE_ALL || what == SYNCHRONIZE_EVENT) unguard();
}

Graph* capturing(cudaStream_t stream) { return is_stream(stream) ? ((Stream*)stream)->capture : nullptr; }

// Does a step now, or keeps it for the graph that the stream is captured into.
Error in_stream(cudaStream_t stream, const Step& step) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  if (Graph* graph = capturing(stream)) {
    graph->steps.push_back(step);
    return cudaSuccess;
  }
  return step(stream);
}

// -- memory -----------------------------------------------------------------------------------------------------------

bool on_device(const void* pointer) {
  start();
  return (uintptr_t)pointer - BASE < arena;
}

// Where this library may touch memory. Results of launches that were not run again come to device memory when something is to look at it.
char* reachable(const void* pointer) {
  if (!on_device(pointer)) return (char*)pointer;
  if (contents_wait) {
    std::lock_guard<std::recursive_mutex> lock(guard);
    if (contents_wait) ask(PLACE_CONTENTS, "");
    contents_wait = false;
  }
  return window + ((uintptr_t)pointer - BASE);
}

std::map<uintptr_t, Allocation>::iterator allocation_of(const void* pointer) {
  auto found = allocations.upper_bound((uintptr_t)pointer);
  if (found == allocations.begin()) return allocations.end();
  --found;
  return (uintptr_t)pointer <= found->first + found->second.bytes ? found : allocations.end();
}

size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

Error allocate(void** pointer, size_t bytes, MemoryKind kind, const char* call) {
  start();
  if (!pointer) return fail(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (!bytes) return fail(sticky);
  std::string name(call), answer;
  if (ask(ALLOCATE, raw((uint64_t)bytes) + raw((uint32_t)kind) + raw((uint32_t)name.size()) + name + callers(), &answer) || answer.size() != 8)
    return fail(cudaErrorMemoryAllocation);
  uint64_t address;
  memcpy(&address, answer.data(), 8);
  *pointer = (void*)address;
  allocations[address] = {bytes, kind, outside_runtime ? current_of_driver() : nullptr};
  if (kind != DEVICE) mprotect((void*)address, whole_pages(bytes), PROT_READ | PROT_WRITE);
  return fail(sticky);
}

// Memory that a graph allocates, when the graph or the host frees it: its address stays the graph's.
Error forget(GraphMemory* memory) {
  if (!memory->live) return fail(cudaErrorInvalidValue);
  memory->live = false;
  graph_bytes -= memory->bytes;
  ask(FORGET, raw((uint64_t)(uintptr_t)memory->pointer));
  return fail(sticky);
}

Error release(void* pointer, const char* call, cudaStream_t stream = nullptr) {
  if (!pointer) return fail(sticky);
  auto of_graph = graph_memory.find((uintptr_t)pointer);
  if (of_graph != graph_memory.end()) return forget(of_graph->second);
  auto found = allocations.find((uintptr_t)pointer);
  std::string name(call);
  if (found == allocations.end()) {
    std::string answer;
    ask(RELEASE, raw((uint64_t)(uintptr_t)pointer) + raw(id_of(stream)) + raw((uint32_t)name.size()) + name + callers(), &answer);
    return fail(cudaErrorInvalidValue);
  }
  if (found->second.kind != DEVICE) mprotect(pointer, whole_pages(found->second.bytes), PROT_NONE);
  allocations.erase(found);
  ask(RELEASE, raw((uint64_t)(uintptr_t)pointer) + raw(id_of(stream)) + raw((uint32_t)name.size()) + name + callers());
  return fail(sticky);
}

GraphMemory::~GraphMemory() {
  graph_memory.erase((uintptr_t)pointer);
  if (!live) release(pointer, "cudaGraphDestroy");
}

Condition::~Condition() { release(place, "cudaGraphDestroy"); }

// An allocation by a node of a graph: the address is known at once, the memory is there when the graph runs.
Error allocate_in_graph(Graph* graph, void** pointer, size_t bytes, const char* call) {
  if (Error error = allocate(pointer, bytes, DEVICE, call)) return error;
  auto memory = std::make_shared<GraphMemory>();
  memory->pointer = *pointer;
  memory->bytes = bytes;
  graph_memory[(uintptr_t)*pointer] = memory.get();
  graph->steps.push_back([=](cudaStream_t) {
    if (memory->live) forget(memory.get());
    memory->live = true;
    graph_bytes += bytes;
    most_graph_bytes = std::max(most_graph_bytes, graph_bytes);
    return cudaSuccess;
  });
  return cudaSuccess;
}

Error allocate_in_stream(void** pointer, size_t bytes, cudaStream_t stream, const char* call) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  Graph* graph = capturing(stream);
  return graph && pointer && bytes ? allocate_in_graph(graph, pointer, bytes, call) : allocate(pointer, bytes, DEVICE, call);
}

// True if bytes lie within one allocation of the device, or are memory of the host alone.
bool fits(const void* pointer, size_t count, const char* call) {
  if (!on_device(pointer)) return true;
  auto found = allocation_of(pointer);
  if (found == allocations.end()) {
    misuse("copy-out-of-bounds", "%s: %p lies in no allocation (it may have been freed)", call, pointer);
    return false;
  }
  size_t offset = (uintptr_t)pointer - found->first;
  if (offset + count <= found->second.bytes) return true;
  misuse("copy-out-of-bounds", "%s: %zu bytes, from byte %zu of an allocation of %zu bytes on", call, count, offset, found->second.bytes);
  return false;
}

bool is_device_only(const void* pointer) {
  if (!on_device(pointer)) return false;
  auto found = allocation_of(pointer);
  return found != allocations.end() && found->second.kind == DEVICE;
}

// Tells the emulator of bytes that a copy or a fill moved: from `source` (0: from the host) to `target` (0: to the host); `same`: they were there.
void moved(const void* target, const void* source, size_t count, cudaStream_t stream, bool host_waits, const char* call, bool same = false) {
  uint64_t to = on_device(target) ? (uintptr_t)target : 0, from = source && on_device(source) ? (uintptr_t)source : 0;
  if (!count || (!to && !from)) {
    if (host_waits) tell(SYNCHRONIZE, id_of(stream));
    return;
  }
  std::string name(call);
  if (host_waits) unguard();
  ask(COPIED, raw(to) + raw(from) + raw((uint64_t)count) + raw(id_of(stream)) + raw((uint32_t)host_waits) + raw((uint32_t)same) + raw((uint32_t)name.size()) + name + callers());
}

Error copy_now(void* target, const void* source, size_t count, cudaMemcpyKind kind, cudaStream_t stream, bool host_waits, const char* call) {
  start();
  if (sticky) return fail(sticky);
  if (!count) return cudaSuccess;
  bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost, from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
  bool wrong = kind != cudaMemcpyDefault && ((to_host && is_device_only(target)) || (from_host && is_device_only(source)) ||
                                             (!to_host && !on_device(target)) || (!from_host && !on_device(source)));
  if (wrong) {
    misuse("copy-direction", "%s: the direction %d does not fit the pointers %p <- %p", call, (int)kind, target, source);
    return fail(cudaErrorInvalidValue);
  }
  if (!target || !source) {
    misuse("copy-out-of-bounds", "%s: %zu bytes %s a null pointer", call, count, source ? "to" : "from");
    return fail(cudaErrorInvalidValue);
  }
  if (!fits(target, count, call) || !fits(source, count, call)) return fail(cudaErrorInvalidValue);
  char *to = reachable(target), *from = reachable(source);
  // Benchmarks copy the same data again and again: launches behind such a copy meet the memory that they know.
  bool same = on_device(target) && !memcmp(to, from, count);
  if (!same) memmove(to, from, count);
  moved(target, source, count, stream, host_waits, call, same);
  return fail(sticky);
}

Error copy_rows(void* target, size_t target_pitch, const void* source, size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                cudaStream_t stream, bool host_waits, const char* call) {
  if (width > target_pitch || width > source_pitch) return fail(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; ++row) {
    Error error = copy_now((char*)target + row * target_pitch, (const char*)source + row * source_pitch, width, kind, stream, host_waits, call);
    if (error) return error;
  }
  return cudaSuccess;
}

// Zeros in many pages cost nothing if the pages are given back: pools of gigabytes are mostly never used.
void fill_bytes(char* target, int value, size_t count) {
  const uintptr_t page = 4096, first = ((uintptr_t)target + page - 1) & ~(page - 1), last = ((uintptr_t)target + count) & ~(page - 1);
  if ((unsigned char)value || count < (1 << 20) || madvise((void*)first, last - first, MADV_REMOVE)) {
    memset(target, value, count);
    return;
  }
  memset(target, 0, first - (uintptr_t)target);
  memset((void*)last, 0, (uintptr_t)target + count - last);
}

Error fill_now(void* target, int value, size_t count, cudaStream_t stream, bool host_waits, const char* call) {
  start();
  if (sticky) return fail(sticky);
  if (!count) return cudaSuccess;
  if (!on_device(target) || !fits(target, count, call)) return fail(cudaErrorInvalidValue);
  fill_bytes((char*)reachable(target), value, count);
  moved(target, nullptr, count, stream, host_waits, call);
  return cudaSuccess;
}

Variable* variable_of(const void* symbol) {
  auto found = variables.find(symbol);
  if (found == variables.end()) return nullptr;
  Variable* variable = found->second;
  if (!variable->address) {
    std::string answer;
    if (ask(FIND_VARIABLE, raw(variable->module) + variable->name, &answer) || answer.size() != 16) return nullptr;
    memcpy(&variable->address, answer.data(), 8);
    memcpy(&variable->size, answer.data() + 8, 8);
    allocations[variable->address] = {variable->size, DEVICE};
  }
  return variable;
}

// -- kernels ----------------------------------------------------------------------------------------------------------

Kernel* kernel_of(const void* function) {
  auto found = kernels.find(function);
  if (found != kernels.end()) return found->second;
  return kernel_set.count((const Kernel*)function) ? (Kernel*)function : nullptr;
}

Error know(Kernel* kernel) {
  if (kernel->known) return cudaSuccess;
  std::string answer;
  if (ask(FIND_KERNEL, raw(kernel->module) + kernel->name, &answer) || answer.size() < 16) {
    say("%s: %s", kernel->name.c_str(), answer.c_str());
    return fail(cudaErrorInvalidDeviceFunction);
  }
  uint32_t head[4];
  memcpy(head, answer.data(), 16);
  kernel->shared_bytes = head[1];
  kernel->local_bytes = head[2];
  kernel->max_threads = head[3];
  for (uint32_t i = 0; i < head[0]; ++i) {
    uint32_t pair[2];
    memcpy(pair, answer.data() + 16 + 8 * i, 8);
    kernel->parameters.push_back({pair[0], pair[1]});
    kernel->parameter_bytes = pair[0] + pair[1];
  }
  kernel->known = true;
  return cudaSuccess;
}

enum LaunchKind : uint32_t { COOPERATIVE = 1, PROGRAMMATIC = 2 };  // may begin before the launch in front of it has ended
struct LaunchShape { dim3 grid, block; uint32_t cluster[3]; size_t shared; uint32_t kinds; };

Error launch_now(Kernel* kernel, const LaunchShape& shape, const std::string& parameters, cudaStream_t stream) {
  if (sticky) return fail(sticky);
  uint32_t words[12] = {shape.grid.x,     shape.grid.y,     shape.grid.z,     shape.block.x,          shape.block.y, shape.block.z,
                        shape.cluster[0], shape.cluster[1], shape.cluster[2], (uint32_t)shape.shared, shape.kinds, id_of(stream)};
  std::string answer;
  fflush(stdout);
  int status = ask(LAUNCH, raw(kernel->module) + raw(words) + raw((uint32_t)kernel->name.size()) + kernel->name + parameters, &answer);
  if (status == cudaSuccess) {
    // Memory that the kernel wrote and the host sees may not be touched before the host has waited.
    uint32_t count = 0;
    if (answer.size() >= 4) memcpy(&count, answer.data(), 4);
    contents_wait = count >> 31;
    count &= 0x7fffffff;
    for (uint32_t i = 0; i < count && answer.size() >= 4 + 16 * (i + 1); ++i) {
      uint64_t range[2];
      memcpy(range, answer.data() + 4 + 16 * i, 16);
      guarded[range[0]] = {range[1], kernel->name};
      mprotect((void*)range[0], range[1], PROT_NONE);
    }
    fputs(answer.c_str() + 4 + 16 * count, stdout);
    return cudaSuccess;
  }
  fputs(answer.c_str(), stdout);
  if (status == cudaErrorInvalidConfiguration || status == cudaErrorInvalidDeviceFunction || status == cudaErrorInvalidValue) return fail((Error)status);
  sticky = (Error)status;  // as on a GPU, later calls tell
  return cudaSuccess;
}

Error launch(const void* function, LaunchShape shape, void** arguments, cudaStream_t stream) {
  Kernel* kernel = kernel_of(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  if (Error error = know(kernel)) return error;
  size_t most = kernel->dynamic_limit ? kernel->dynamic_limit : 49152 > kernel->shared_bytes ? 49152 - kernel->shared_bytes : 0;
  if (shape.shared > most) {
    misuse("too-much-shared-memory", "%s is launched with %zu bytes of dynamic shared memory, more than %zu: cudaFuncSetAttribute allows more",
           kernel->name.c_str(), shape.shared, most);
    return fail(cudaErrorInvalidValue);
  }
  std::string parameters(kernel->parameter_bytes, '\0');
  for (size_t i = 0; i < kernel->parameters.size(); ++i)
    memcpy(&parameters[kernel->parameters[i].first], arguments[i], kernel->parameters[i].second);
  return in_stream(stream, [=](cudaStream_t stream) { return launch_now(kernel, shape, parameters, stream); });
}

LaunchShape plain_shape(dim3 grid, dim3 block, size_t shared, bool cooperative = false) { return {grid, block, {0, 0, 0}, shared, cooperative ? COOPERATIVE : 0u}; }

// -- the card ---------------------------------------------------------------------------------------------------------

int architecture() { return (int)setting("GEMMGEN_ARCHITECTURE", 80); }

// Bytes that the device has by its own account, of which programs may allocate those of the arena.
size_t device_bytes() { return (size_t)setting("GEMMGEN_DEVICE_BYTES", (double)arena); }
std::string device_name() {
  const char* name = setting("GEMMGEN_DEVICE_NAME");
  return name ? name : "gemmgen emulator (sm_" + std::to_string(architecture()) + ")";
}
// Zeros for the emulator.
uint32_t device_number() {
  uint32_t number = 0;
  for (char each : std::string(setting("GEMMGEN_DEVICE_NAME") ? device_name() : "")) number = number * 31 + (unsigned char)each;
  return number;
}

Error finish_all() {
  tell(SYNCHRONIZE_ALL, 0);
  return fail(sticky);
}

// Host memory that kernels reach too: its pages become pages of device memory, at the same place for the host.
Error map_host_memory(void* pointer, size_t bytes) {
  uintptr_t first = (uintptr_t)pointer & ~(uintptr_t)(PAGE - 1);
  size_t whole = whole_pages((uintptr_t)pointer + bytes - first);
  void* device;
  if (!bytes || registered.count(first)) return fail(cudaErrorInvalidValue);
  if (Error error = allocate(&device, whole, PINNED, "cudaHostRegister")) return error;
  memcpy(device, (void*)first, whole);
  if (mmap((void*)first, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_file, (uintptr_t)device - BASE) == MAP_FAILED) return fail(cudaErrorInvalidValue);
  registered[first] = {device, whole};
  return cudaSuccess;
}

Error unmap_host_memory(void* pointer) {
  auto found = registered.find((uintptr_t)pointer & ~(uintptr_t)(PAGE - 1));
  if (found == registered.end()) return cudaSuccess;
  finish_all();
  std::string kept((char*)found->second.device, found->second.bytes);
  if (mmap((void*)found->first, kept.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) return fail(cudaErrorInvalidValue);
  memcpy((void*)found->first, kept.data(), kept.size());
  void* device = found->second.device;
  registered.erase(found);
  return release(device, "cudaHostUnregister");
}

int attribute(int which) {
  bool hopper = architecture() >= 90;
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return hopper ? 232448 : 166912;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return hopper ? 233472 : 167936;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMultiProcessorCount: return (int)setting("GEMMGEN_MULTIPROCESSORS", 8);
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrComputeCapabilityMajor: return architecture() / 10;
    case cudaDevAttrComputeCapabilityMinor: return architecture() % 10;
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrUnifiedAddressing: case cudaDevAttrManagedMemory: case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrConcurrentManagedAccess: case cudaDevAttrConcurrentKernels:
    case cudaDevAttrMemoryPoolsSupported: case cudaDevAttrAsyncEngineCount: return 1;
    // Of the emulator: kernels that wait for a time count on it.
    case cudaDevAttrClockRate: return (int)setting("GEMMGEN_CLOCK", 1000);
    case cudaDevAttrMemoryClockRate: return (int)setting("GEMMGEN_MEMORY_CLOCK", 1000000);
    case cudaDevAttrGlobalMemoryBusWidth: return (int)setting("GEMMGEN_BUS", 512);
    case cudaDevAttrL2CacheSize: return (int)setting("GEMMGEN_L2", 1 << 22);
    case cudaDevAttrPciBusId: return device_number() & 0xFF;
    case cudaDevAttrMaxPersistingL2CacheSize: case cudaDevAttrMaxAccessPolicyWindowSize: return 1 << 20;
    case cudaDevAttrTextureAlignment: case cudaDevAttrTexturePitchAlignment: return 512;
    case cudaDevAttrClusterLaunch: return hopper;
    default: return 0;
  }
}

size_t element_bytes(const cudaChannelFormatDesc& format) { return (format.x + format.y + format.z + format.w) / 8; }

size_t rows_of(const Array* array) { return std::max<size_t>(array->extent.height, 1) * std::max<size_t>(array->extent.depth, 1); }

}  // namespace

// Stubs of calls that are not written name themselves here.
API cudaError_t gemmgen_unsupported(const char* name) {
  unsupported(name);
  return cudaErrorNotSupported;
}

// -- time ---------------------------------------------------------------------------------------------------------------

// The time of a clock since its first use, at the pace that gemmgen gives: programs may not compute something else on a faster device.
static int read_clock(clockid_t clock, timespec* t) {
  if (syscall(SYS_clock_gettime, clock, t)) return -1;
  static const double pace = setting("GEMMGEN_PACE", 1);
  static std::map<clockid_t, timespec> first;
  static std::mutex latch;
  if (pace == 1) return 0;
  std::lock_guard<std::mutex> lock(latch);
  const timespec& begin = first.emplace(clock, *t).first->second;
  const double passed = ((t->tv_sec - begin.tv_sec) * 1e9 + (t->tv_nsec - begin.tv_nsec)) * pace + begin.tv_nsec;
  t->tv_sec = begin.tv_sec + (time_t)(passed / 1e9);
  t->tv_nsec = (long)(passed - 1e9 * (double)(time_t)(passed / 1e9));
  return 0;
}
API int clock_gettime(clockid_t clock, timespec* t) noexcept { return read_clock(clock, t); }
API int timespec_get(timespec* t, int base) noexcept { return base == TIME_UTC && !read_clock(CLOCK_REALTIME, t) ? base : 0; }
API int gettimeofday(timeval* t, void*) noexcept {
  timespec exact;
  if (read_clock(CLOCK_REALTIME, &exact)) return -1;
  *t = {exact.tv_sec, exact.tv_nsec / 1000};
  return 0;
}
API time_t time(time_t* t) noexcept {
  timespec exact;
  read_clock(CLOCK_REALTIME, &exact);
  if (t) *t = exact.tv_sec;
  return exact.tv_sec;
}
API clock_t clock() noexcept {
  timespec exact;
  read_clock(CLOCK_PROCESS_CPUTIME_ID, &exact);
  return exact.tv_sec * 1000000 + exact.tv_nsec / 1000;
}

// -- functions that nvcc generates calls of --------------------------------------------------------------------------------------

API void** __cudaRegisterFatBinary(void* wrapper) {
  OutsideRuntime registration;
  struct Wrapper { int magic, version; const char* data; const char** linked; };
  std::string binaries;
  auto add = [&](const char* data) {
    uint64_t size;
    uint16_t header;
    memcpy(&header, data + 6, 2);
    memcpy(&size, data + 8, 8);
    binaries.append(data, header + size);
  };
  const Wrapper* given = (Wrapper*)wrapper;
  // Relocatable device code: a list of the binaries of all source files, which the device linker left apart as PTX.
  if (given->version == 2)
    for (const char** each = given->linked; each && *each; ++each) add(*each);
  else
    add(given->data);
  std::string answer;
  uint64_t* module = new uint64_t(~0ull);
  if (ask(LOAD_MODULE, binaries, &answer) == 0 && answer.size() == 8) memcpy(module, answer.data(), 8);
  return (void**)module;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API char __cudaInitModule(void**) {
  OutsideRuntime registration;
  for (auto& each : managed_variables)
    if (Variable* variable = variable_of(each.first)) *each.first = (void*)variable->address;
  return 0;
}
API void __cudaRegisterFunction(void** module, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  Kernel* kernel = new Kernel;
  kernel->module = *(uint64_t*)module;
  kernel->name = name;
  kernels[function] = kernel;
  kernel_set.insert(kernel);
}
API void __cudaRegisterVar(void** module, char* variable, char*, const char* name, int, size_t, int, int) {
  Variable* made = new Variable;
  made->module = *(uint64_t*)module;
  made->name = name;
  variables[variable] = made;
}
API void __cudaRegisterManagedVar(void** module, void** variable, char*, const char* name, int, size_t, int, int) {
  Variable* made = new Variable;
  made->module = *(uint64_t*)module;
  made->name = name;
  variables[variable] = made;
  OutsideRuntime registration;
  if (variable_of(variable)) {
    *variable = (void*)made->address;
    allocations[made->address].kind = MANAGED;
    uintptr_t first = made->address / PAGE * PAGE;
    mprotect((void*)first, whole_pages(made->address - first + made->size), PROT_READ | PROT_WRITE);
    managed_variables.push_back({variable, made});
  }
}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
API Error __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty()) return fail(cudaErrorMissingConfiguration);
  Configuration found = configurations.back();
  configurations.pop_back();
  *grid = found.grid;
  *block = found.block;
  *shared = found.shared;
  *(cudaStream_t*)stream = found.stream;
  return cudaSuccess;
}
API Error __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)kernel_of(function);
  return *kernel ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}
API Error __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(kernel, plain_shape(grid, block, shared), arguments, stream);
}

// -- launches ---------------------------------------------------------------------------------------------------------

API Error cudaGetKernel(cudaKernel_t* kernel, const void* function) { return __cudaGetKernel(kernel, function); }
API Error cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) { return __cudaGetKernel((cudaKernel_t*)function, symbol); }
API Error cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(function, plain_shape(grid, block, shared), arguments, stream);
}
API Error cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(function, plain_shape(grid, block, shared, true), arguments, stream);
}
API Error cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function, void** arguments) {
  LaunchShape shape = plain_shape(configuration->gridDim, configuration->blockDim, configuration->dynamicSmemBytes);
  for (unsigned i = 0; i < configuration->numAttrs; ++i) {
    const cudaLaunchAttribute& each = configuration->attrs[i];
    if (each.id == cudaLaunchAttributeClusterDimension) {
      shape.cluster[0] = each.val.clusterDim.x;
      shape.cluster[1] = each.val.clusterDim.y;
      shape.cluster[2] = each.val.clusterDim.z;
    }
    if (each.id == cudaLaunchAttributeCooperative && each.val.cooperative) shape.kinds |= COOPERATIVE;
    if (each.id == cudaLaunchAttributeProgrammaticStreamSerialization && each.val.programmaticStreamSerializationAllowed) shape.kinds |= PROGRAMMATIC;
  }
  return launch(function, shape, arguments, configuration->stream);
}
API Error cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return in_stream(stream, [=](cudaStream_t stream) { function(data); return cudaSuccess; });
}
API Error cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  return in_stream(stream, [=](cudaStream_t stream) { function(stream, sticky, data); return cudaSuccess; });
}
API Error cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  Kernel* kernel = kernel_of(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return fail(cudaErrorInvalidValue);
    kernel->dynamic_limit = value;
  }
  return cudaSuccess;
}
API Error cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
API Error cudaFuncSetSharedMemConfig(const void*, cudaSharedMemConfig) { return cudaSuccess; }
API Error cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  Kernel* kernel = kernel_of(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  if (Error error = know(kernel)) return error;
  memset(attributes, 0, sizeof *attributes);
  attributes->sharedSizeBytes = kernel->shared_bytes;
  attributes->localSizeBytes = kernel->local_bytes;
  attributes->maxThreadsPerBlock = kernel->max_threads;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = architecture();
  attributes->maxDynamicSharedSizeBytes = kernel->dynamic_limit ? kernel->dynamic_limit : 49152 - (int)kernel->shared_bytes;
  return cudaSuccess;
}
API Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads, size_t shared, unsigned) {
  Kernel* kernel = kernel_of(function);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  if (Error error = know(kernel)) return error;
  int by_threads = threads > 0 && threads <= (int)kernel->max_threads ? 2048 / ((threads + 31) / 32 * 32) : 0;
  int by_memory = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / (int)(shared + kernel->shared_bytes + 1024);
  *blocks = std::min(std::min(by_threads, by_memory), 32);
  return cudaSuccess;
}
API Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
API Error cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function, int blocks, int) {
  Kernel* kernel = kernel_of(function);
  if (!kernel || know(kernel) || blocks < 1) return fail(cudaErrorInvalidValue);
  int each = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / blocks - 1024 - (int)kernel->shared_bytes;
  *bytes = std::max(std::min(each, attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)), 0);
  return cudaSuccess;
}
API Error cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const cudaLaunchConfig_t*) { *size = 8; return cudaSuccess; }

// -- memory -----------------------------------------------------------------------------------------------------------

API Error cudaMalloc(void** pointer, size_t bytes) { return allocate(pointer, bytes, DEVICE, "cudaMalloc"); }
API Error cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) { return allocate_in_stream(pointer, bytes, stream, "cudaMallocAsync"); }
API Error cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t, cudaStream_t stream) {
  return allocate_in_stream(pointer, bytes, stream, "cudaMallocFromPoolAsync");
}
API Error cudaMallocManaged(void** pointer, size_t bytes, unsigned) { return allocate(pointer, bytes, MANAGED, "cudaMallocManaged"); }
API Error cudaMallocHost(void** pointer, size_t bytes) { return allocate(pointer, bytes, PINNED, "cudaMallocHost"); }
API Error cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return allocate(pointer, bytes, PINNED, "cudaHostAlloc"); }
API Error cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return allocate(pointer, *pitch * height, DEVICE, "cudaMallocPitch");
}
API Error cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
  pointer->pitch = (extent.width + 511) / 512 * 512;
  pointer->xsize = extent.width;
  pointer->ysize = extent.height;
  return allocate(&pointer->ptr, pointer->pitch * extent.height * extent.depth, DEVICE, "cudaMalloc3D");
}
API Error cudaFree(void* pointer) {
  start();
  if (pointer) finish_all();
  return release(pointer, "cudaFree");
}
API Error cudaFreeAsync(void* pointer, cudaStream_t stream) { return in_stream(stream, [=](cudaStream_t stream) { return release(pointer, "cudaFreeAsync", stream); }); }
API Error cudaFreeHost(void* pointer) { return release(pointer, "cudaFreeHost"); }
API Error cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  auto found = registered.upper_bound((uintptr_t)host);
  if (found != registered.begin() && (uintptr_t)host < (--found)->first + found->second.bytes) {
    *device = (char*)found->second.device + ((uintptr_t)host - found->first);
    return cudaSuccess;
  }
  *device = host;
  return on_device(host) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
API Error cudaHostGetFlags(unsigned* flags, void*) { *flags = 0; return cudaSuccess; }
API Error cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return flags & cudaHostRegisterMapped ? map_host_memory(pointer, bytes) : cudaSuccess;
}
API Error cudaHostUnregister(void* pointer) { return unmap_host_memory(pointer); }
API Error cudaMemcpy(void* target, const void* source, size_t count, cudaMemcpyKind kind) {
  return copy_now(target, source, count, kind, nullptr, true, "cudaMemcpy");
}
API Error cudaMemcpyAsync(void* target, const void* source, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  // Pageable memory is copied through a buffer of the driver's: the host waits for it.
  bool waits = !(on_device(target) && on_device(source));
  return in_stream(stream, [=](cudaStream_t stream) { return copy_now(target, source, count, kind, stream, waits, "cudaMemcpyAsync"); });
}
API Error cudaMemcpy2D(void* target, size_t target_pitch, const void* source, size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
  return copy_rows(target, target_pitch, source, source_pitch, width, height, kind, nullptr, true, "cudaMemcpy2D");
}
API Error cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  bool waits = !(on_device(target) && on_device(source));
  return in_stream(stream, [=](cudaStream_t stream) { return copy_rows(target, target_pitch, source, source_pitch, width, height, kind, stream, waits, "cudaMemcpy2DAsync"); });
}
API Error cudaMemcpyPeer(void* target, int, const void* source, int, size_t count) {
  return copy_now(target, source, count, cudaMemcpyDefault, nullptr, true, "cudaMemcpyPeer");
}
API Error cudaMemcpyPeerAsync(void* target, int, const void* source, int, size_t count, cudaStream_t stream) {
  return in_stream(stream, [=](cudaStream_t stream) { return copy_now(target, source, count, cudaMemcpyDefault, stream, false, "cudaMemcpyPeerAsync"); });
}
API Error cudaMemset(void* target, int value, size_t count) { return fill_now(target, value, count, nullptr, false, "cudaMemset"); }
API Error cudaMemsetAsync(void* target, int value, size_t count, cudaStream_t stream) {
  return in_stream(stream, [=](cudaStream_t stream) { return fill_now(target, value, count, stream, false, "cudaMemsetAsync"); });
}
API Error cudaMemset2DAsync(void* target, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return in_stream(stream, [=](cudaStream_t stream) {
    for (size_t row = 0; row < height; ++row)
      if (Error error = fill_now((char*)target + row * pitch, value, width, stream, false, "cudaMemset2D")) return error;
    return cudaSuccess;
  });
}
API Error cudaMemset2D(void* target, size_t pitch, int value, size_t width, size_t height) {
  return cudaMemset2DAsync(target, pitch, value, width, height, nullptr);
}
API Error cudaMemcpyToSymbolAsync(const void* symbol, const void* source, size_t count, size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  Variable* variable = variable_of(symbol);
  if (!variable) return fail(cudaErrorInvalidSymbol);
  return in_stream(stream, [=](cudaStream_t stream) { return copy_now((char*)variable->address + offset, source, count, kind, stream, true, "cudaMemcpyToSymbol"); });
}
API Error cudaMemcpyToSymbol(const void* symbol, const void* source, size_t count, size_t offset, cudaMemcpyKind kind) {
  return cudaMemcpyToSymbolAsync(symbol, source, count, offset, kind, nullptr);
}
API Error cudaMemcpyFromSymbolAsync(void* target, const void* symbol, size_t count, size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  Variable* variable = variable_of(symbol);
  if (!variable) return fail(cudaErrorInvalidSymbol);
  return in_stream(stream, [=](cudaStream_t stream) { return copy_now(target, (char*)variable->address + offset, count, kind, stream, true, "cudaMemcpyFromSymbol"); });
}
API Error cudaMemcpyFromSymbol(void* target, const void* symbol, size_t count, size_t offset, cudaMemcpyKind kind) {
  return cudaMemcpyFromSymbolAsync(target, symbol, count, offset, kind, nullptr);
}
API Error cudaGetSymbolAddress(void** address, const void* symbol) {
  Variable* variable = variable_of(symbol);
  if (variable) *address = (void*)variable->address;
  return variable ? cudaSuccess : fail(cudaErrorInvalidSymbol);
}
API Error cudaGetSymbolSize(size_t* size, const void* symbol) {
  Variable* variable = variable_of(symbol);
  if (variable) *size = variable->size;
  return variable ? cudaSuccess : fail(cudaErrorInvalidSymbol);
}
API Error cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  start();
  size_t used = 0;
  for (auto& each : allocations) used += each.second.bytes;
  *total = device_bytes();
  *free_bytes = used < *total ? *total - used : 0;
  return fail(sticky);
}
API Error cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) { return cudaSuccess; }
API Error cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
API Error cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  memset(attributes, 0, sizeof *attributes);
  auto found = allocation_of(pointer);
  if (!on_device(pointer) || found == allocations.end()) {
    attributes->hostPointer = (void*)pointer;
    return cudaSuccess;
  }
  MemoryKind kind = found->second.kind;
  attributes->type = kind == DEVICE ? cudaMemoryTypeDevice : kind == MANAGED ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
  attributes->devicePointer = (void*)pointer;
  attributes->hostPointer = kind == DEVICE ? nullptr : (void*)pointer;
  return cudaSuccess;
}
API Error cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { *pool = (cudaMemPool_t)1; return cudaSuccess; }
API Error cudaDeviceGetMemPool(cudaMemPool_t* pool, int) { *pool = (cudaMemPool_t)1; return cudaSuccess; }
API Error cudaDeviceSetMemPool(int, cudaMemPool_t) { return cudaSuccess; }
API Error cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) { *pool = (cudaMemPool_t)2; return cudaSuccess; }
API Error cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
API Error cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
API Error cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) { *(uint64_t*)value = 0; return cudaSuccess; }
API Error cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
API Error cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t, cudaMemLocation*) { *flags = cudaMemAccessFlagsProtReadWrite; return cudaSuccess; }
API Error cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// -- arrays and textures -----------------------------------------------------------------------------------------------

API cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) { return {x, y, z, w, kind}; }
API Error cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* format, cudaExtent extent, unsigned flags) {
  // Layers and faces are the outermost axis, as the depth is.
  Array* made = new Array{*format, extent, nullptr, element_bytes(*format), flags};
  Error error = allocate(&made->data, made->element_bytes * extent.width * rows_of(made), DEVICE, "cudaMallocArray");
  *array = (cudaArray_t)made;
  return error;
}
API Error cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* format, size_t width, size_t height, unsigned flags) {
  return cudaMalloc3DArray(array, format, cudaExtent{width, height, 0}, flags);
}
API Error cudaFreeArray(cudaArray_t array) {
  if (!array) return cudaSuccess;
  Error error = release(((Array*)array)->data, "cudaFreeArray");
  delete (Array*)array;
  return error;
}
API Error cudaArrayGetInfo(cudaChannelFormatDesc* format, cudaExtent* extent, unsigned* flags, cudaArray_t array) {
  Array* found = (Array*)array;
  if (format) *format = found->format;
  if (extent) *extent = found->extent;
  if (flags) *flags = found->flags;
  return cudaSuccess;
}
API Error cudaMemcpy2DToArray(cudaArray_t array, size_t x, size_t y, const void* source, size_t pitch, size_t width, size_t height, cudaMemcpyKind kind) {
  Array* found = (Array*)array;
  size_t row = found->element_bytes * found->extent.width;
  return copy_rows((char*)found->data + y * row + x, row, source, pitch, width, height, kind, nullptr, true, "cudaMemcpy2DToArray");
}
API Error cudaMemcpy2DToArrayAsync(cudaArray_t array, size_t x, size_t y, const void* source, size_t pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  Array* found = (Array*)array;
  size_t row = found->element_bytes * found->extent.width;
  return in_stream(stream, [=](cudaStream_t stream) { return copy_rows((char*)found->data + y * row + x, row, source, pitch, width, height, kind, stream, !on_device(source), "cudaMemcpy2DToArrayAsync"); });
}
API Error cudaGetChannelDesc(cudaChannelFormatDesc* format, cudaArray_const_t array) { *format = ((Array*)array)->format; return cudaSuccess; }
API Error cudaMemcpy2DFromArray(void* target, size_t pitch, cudaArray_const_t array, size_t x, size_t y, size_t width, size_t height, cudaMemcpyKind kind) {
  Array* found = (Array*)array;
  size_t row = found->element_bytes * found->extent.width;
  return copy_rows(target, pitch, (char*)found->data + y * row + x, row, width, height, kind, nullptr, true, "cudaMemcpy2DFromArray");
}
API Error cudaMemcpyToArray(cudaArray_t array, size_t x, size_t y, const void* source, size_t count, cudaMemcpyKind kind) {
  Array* found = (Array*)array;
  return copy_now((char*)found->data + y * found->element_bytes * found->extent.width + x, source, count, kind, nullptr, true, "cudaMemcpyToArray");
}
API Error cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  cudaMemcpy3DParms copy = *p;
  return in_stream(stream, [=](cudaStream_t stream) {
    Array *from = (Array*)copy.srcArray, *to = (Array*)copy.dstArray;
    size_t unit = from ? from->element_bytes : to ? to->element_bytes : 1;
    size_t from_pitch = from ? unit * from->extent.width : copy.srcPtr.pitch, to_pitch = to ? unit * to->extent.width : copy.dstPtr.pitch;
    size_t from_rows = from ? std::max<size_t>(from->extent.height, 1) : copy.srcPtr.ysize, to_rows = to ? std::max<size_t>(to->extent.height, 1) : copy.dstPtr.ysize;
    char *source = (char*)(from ? from->data : copy.srcPtr.ptr), *target = (char*)(to ? to->data : copy.dstPtr.ptr);
    source += copy.srcPos.x * (from ? unit : 1) + copy.srcPos.y * from_pitch + copy.srcPos.z * from_pitch * from_rows;
    target += copy.dstPos.x * (to ? unit : 1) + copy.dstPos.y * to_pitch + copy.dstPos.z * to_pitch * to_rows;
    size_t width = copy.extent.width * unit, height = std::max<size_t>(copy.extent.height, 1), depth = std::max<size_t>(copy.extent.depth, 1);
    for (size_t z = 0; z < depth; ++z) {
      Error error = copy_rows(target + z * to_pitch * to_rows, to_pitch, source + z * from_pitch * from_rows, from_pitch, width, height, copy.kind, stream, true, "cudaMemcpy3D");
      if (error) return error;
    }
    return cudaSuccess;
  });
}
API Error cudaMemcpy3D(const cudaMemcpy3DParms* p) { return cudaMemcpy3DAsync(p, nullptr); }
static Error create_view(uint64_t* object, const cudaResourceDesc* resource, const cudaTextureDesc& texture, const char* call) {
  uint64_t address = 0, extents[3] = {0, 0, 0}, pitch = 0;
  cudaChannelFormatDesc format = {};
  bool linear = false;
  if (resource->resType == cudaResourceTypeArray) {
    Array* array = (Array*)resource->res.array.array;
    if (!array) return fail(cudaErrorInvalidValue);
    address = (uintptr_t)array->data;
    format = array->format;
    extents[0] = array->extent.width; extents[1] = array->extent.height; extents[2] = array->extent.depth;
  } else if (resource->resType == cudaResourceTypeLinear) {
    address = (uintptr_t)resource->res.linear.devPtr;
    format = resource->res.linear.desc;
    extents[0] = element_bytes(format) ? resource->res.linear.sizeInBytes / element_bytes(format) : 0;
    linear = true;
  } else if (resource->resType == cudaResourceTypePitch2D) {
    address = (uintptr_t)resource->res.pitch2D.devPtr;
    format = resource->res.pitch2D.desc;
    extents[0] = resource->res.pitch2D.width; extents[1] = resource->res.pitch2D.height;
    pitch = resource->res.pitch2D.pitchInBytes == extents[0] * element_bytes(format) ? 0 : resource->res.pitch2D.pitchInBytes;
  } else {
    unsupported("textures over mipmapped arrays");
    return cudaErrorNotSupported;
  }
  uint32_t channels = 1 + (format.y > 0) + (format.z > 0) + (format.w > 0);
  uint32_t words[8] = {(uint32_t)format.x, channels, (uint32_t)format.f, (uint32_t)texture.filterMode, (uint32_t)texture.addressMode[0],
                       (uint32_t)texture.normalizedCoords, (uint32_t)(texture.readMode == cudaReadModeNormalizedFloat), (uint32_t)linear};
  std::string answer;
  if (ask(TEXTURE, raw(address) + raw(extents) + raw(pitch) + raw(words), &answer) || answer.size() != 8) {
    say("%s: %s", call, answer.c_str());
    return fail(cudaErrorNotSupported);
  }
  memcpy(object, answer.data(), 8);
  return cudaSuccess;
}
API Error cudaCreateTextureObject(cudaTextureObject_t* object, const cudaResourceDesc* resource, const cudaTextureDesc* texture, const cudaResourceViewDesc*) {
  Error error = create_view((uint64_t*)object, resource, *texture, "cudaCreateTextureObject");
  if (!error) views[*object] = {*resource, *texture};
  return error;
}
API Error cudaGetTextureObjectResourceDesc(cudaResourceDesc* resource, cudaTextureObject_t object) {
  if (!views.count(object)) return fail(cudaErrorInvalidValue);
  *resource = views[object].first;
  return cudaSuccess;
}
API Error cudaGetTextureObjectTextureDesc(cudaTextureDesc* texture, cudaTextureObject_t object) {
  if (!views.count(object)) return fail(cudaErrorInvalidValue);
  *texture = views[object].second;
  return cudaSuccess;
}
API Error cudaCreateSurfaceObject(cudaSurfaceObject_t* object, const cudaResourceDesc* resource) {
  if (resource->resType != cudaResourceTypeArray) return fail(cudaErrorInvalidValue);
  cudaTextureDesc plain = {};
  plain.addressMode[0] = cudaAddressModeClamp;
  return create_view((uint64_t*)object, resource, plain, "cudaCreateSurfaceObject");
}
API Error cudaDestroySurfaceObject(cudaSurfaceObject_t) { return cudaSuccess; }
API Error cudaDestroyTextureObject(cudaTextureObject_t) { return cudaSuccess; }

// -- streams, events, graphs --------------------------------------------------------------------------------------------

API Error cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  Stream* made = new Stream{next_stream++, flags, priority, nullptr};
  streams.insert(made);
  tell(flags & cudaStreamNonBlocking ? CREATE_UNORDERED : CREATE, made->id);
  *stream = (cudaStream_t)made;
  return fail(sticky);
}
API Error cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
API Error cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API Error cudaStreamDestroy(cudaStream_t stream) {
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  tell(DESTROY, id_of(stream));
  streams.erase((Stream*)stream);
  delete (Stream*)stream;
  return cudaSuccess;
}
API Error cudaStreamSynchronize(cudaStream_t stream) { tell(SYNCHRONIZE, id_of(stream)); return fail(sticky); }
API Error cudaStreamQuery(cudaStream_t stream) { tell(SYNCHRONIZE, id_of(stream)); return fail(sticky); }
API Error cudaStreamGetPriority(cudaStream_t stream, int* priority) { *priority = is_stream(stream) ? ((Stream*)stream)->priority : 0; return cudaSuccess; }
API Error cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) { *flags = is_stream(stream) ? ((Stream*)stream)->flags : 0; return cudaSuccess; }
API Error cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned) { return cudaSuccess; }
API Error cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  Event* made = new Event{next_event++, 0, false, nullptr};
  events.insert(made);
  *event = (cudaEvent_t)made;
  return fail(sticky);
}
API Error cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
static Error record_now(Event* event, cudaStream_t stream) {
  if (!events.count(event)) return fail(cudaErrorInvalidResourceHandle);
  event->milliseconds = now();
  event->recorded = true;
  event->capture = nullptr;
  tell(RECORD, id_of(stream), event->id);
  return fail(sticky);
}
API Error cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  if (!events.count((Event*)event)) return fail(cudaErrorInvalidResourceHandle);
  if (capturing(stream) && !(flags & cudaEventRecordExternal)) {
    // An edge of the graph, whose steps run in the order in which they were captured.
    ((Event*)event)->capture = capturing(stream);
    return cudaSuccess;
  }
  return in_stream(stream, [=](cudaStream_t stream) { return record_now((Event*)event, stream); });
}
API Error cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault); }
API Error cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  if (!events.count((Event*)event)) return fail(cudaErrorInvalidResourceHandle);
  // A stream that waits for an event of a captured one is captured with it.
  for (Stream* each : streams)
    if (each->capture && each->capture == ((Event*)event)->capture && is_stream(stream) && !capturing(stream)) ((Stream*)stream)->capture = each->capture;
  if (capturing(stream)) return cudaSuccess;
  tell(WAIT, id_of(stream), ((Event*)event)->id);
  return fail(sticky);
}
API Error cudaEventSynchronize(cudaEvent_t event) {
  if (!events.count((Event*)event)) return fail(cudaErrorInvalidResourceHandle);
  tell(SYNCHRONIZE_EVENT, 0, ((Event*)event)->id);
  return fail(sticky);
}
API Error cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
API Error cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (!events.count((Event*)from) || !events.count((Event*)to) || !((Event*)from)->recorded || !((Event*)to)->recorded) return fail(cudaErrorInvalidResourceHandle);
  *milliseconds = std::max(((Event*)to)->milliseconds - ((Event*)from)->milliseconds, 1e-3);
  return cudaSuccess;
}
API Error cudaEventDestroy(cudaEvent_t event) {
  if (!events.erase((Event*)event)) return fail(cudaErrorInvalidResourceHandle);
  delete (Event*)event;
  return cudaSuccess;
}
// Attributes of streams are hints: priorities, the part of L2 that keeps data, how the host waits.
API Error cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID, const cudaLaunchAttributeValue*) { return is_stream(stream) || !stream ? cudaSuccess : fail(cudaErrorInvalidResourceHandle); }
API Error cudaStreamGetAttribute(cudaStream_t, cudaLaunchAttributeID, cudaLaunchAttributeValue* value) { memset(value, 0, sizeof *value); return cudaSuccess; }
API Error cudaStreamCopyAttributes(cudaStream_t, cudaStream_t) { return cudaSuccess; }
static Error capture_into(cudaStream_t stream, Graph* graph) {
  if (!is_stream(stream) || capturing(stream)) return fail(cudaErrorStreamCaptureUnsupported);
  ((Stream*)stream)->capture = graph;
  return cudaSuccess;
}
API Error cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) { return capture_into(stream, new Graph); }
API Error cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
  return capture_into(stream, (Graph*)graph);
}
API Error cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Graph* captured = capturing(stream);
  if (!captured) return fail(cudaErrorStreamCaptureUnmatched);
  for (Stream* each : streams)
    if (each->capture == captured) each->capture = nullptr;
  if (graph) *graph = (cudaGraph_t)captured;
  return cudaSuccess;
}
API Error cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API Error cudaGraphCreate(cudaGraph_t* graph, unsigned) { *graph = (cudaGraph_t) new Graph; return cudaSuccess; }
API Error cudaGraphDestroy(cudaGraph_t graph) { delete (Graph*)graph; return cudaSuccess; }
API Error cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) { *made = (cudaGraphExec_t) new Graph(*(Graph*)graph); return cudaSuccess; }
API Error cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) { return cudaGraphInstantiate(made, graph, 0); }
API Error cudaGraphExecDestroy(cudaGraphExec_t made) { delete (Graph*)made; return cudaSuccess; }
API Error cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
API Error cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) { *clone = (cudaGraph_t) new Graph(*(Graph*)graph); return cudaSuccess; }
// A node is the place of its step, from 1 on, in the graph and in its instances.
API Error cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  size_t all = ((Graph*)graph)->steps.size();
  for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = i < all ? (cudaGraphNode_t)(i + 1) : nullptr;
  *count = nodes ? std::min(*count, all) : all;
  return cudaSuccess;
}
static Error run_steps(const Graph& graph, cudaStream_t stream) {
  // Steps run in the order in which they were added, which is one that the graph allows.
  for (auto& step : graph.steps)
    if (Error error = step(stream)) return error;
  return fail(sticky);
}
API Error cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t stream) {
  Graph graph = *(Graph*)made;
  return in_stream(stream, [=](cudaStream_t stream) {
    for (auto& each : graph.conditions)
      if (each->is_reset)
        if (Error error = copy_now(each->place, &each->value, sizeof each->value, cudaMemcpyHostToDevice, stream, false, "cudaGraphLaunch")) return error;
    return run_steps(graph, stream);
  });
}
static Error add_step(cudaGraphNode_t* node, cudaGraph_t graph, Step step) {
  ((Graph*)graph)->steps.push_back(step);
  *node = (cudaGraphNode_t)((Graph*)graph)->steps.size();
  return cudaSuccess;
}
API Error cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t) {
  return add_step(node, graph, [](cudaStream_t) { return cudaSuccess; });
}
template <class Parameters> static Error kernel_step(const Parameters* p, Step* step) {
  Kernel* kernel = kernel_of((const void*)p->func);
  if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
  if (Error error = know(kernel)) return error;
  std::string parameters(kernel->parameter_bytes, '\0');
  for (size_t i = 0; i < kernel->parameters.size(); ++i) memcpy(&parameters[kernel->parameters[i].first], p->kernelParams[i], kernel->parameters[i].second);
  LaunchShape shape = plain_shape(p->gridDim, p->blockDim, p->sharedMemBytes);
  *step = [=](cudaStream_t stream) { return launch_now(kernel, shape, parameters, stream); };
  return cudaSuccess;
}
template <class Parameters> static Error add_kernel(cudaGraphNode_t* node, cudaGraph_t graph, const Parameters* p) {
  Step step;
  if (Error error = kernel_step(p, &step)) return error;
  return add_step(node, graph, step);
}
API Error cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, const cudaKernelNodeParams* p) {
  return add_kernel(node, graph, p);
}
API Error cudaGraphExecKernelNodeSetParams(cudaGraphExec_t made, cudaGraphNode_t node, const cudaKernelNodeParams* p) {
  auto& steps = ((Graph*)made)->steps;
  if ((size_t)node < 1 || (size_t)node > steps.size()) return fail(cudaErrorInvalidValue);
  return kernel_step(p, &steps[(size_t)node - 1]);
}
API Error cudaGraphExecUpdate(cudaGraphExec_t made, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* result) {
  memset(result, 0, sizeof *result);
  bool fits = ((Graph*)made)->steps.size() == ((Graph*)graph)->steps.size();
  result->result = fits ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
  if (!fits) return fail(cudaErrorGraphExecUpdateFailure);
  *(Graph*)made = *(Graph*)graph;
  return cudaSuccess;
}
API Error cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, void* target, const void* source, size_t count, cudaMemcpyKind kind) {
  return add_step(node, graph, [=](cudaStream_t stream) { return copy_now(target, source, count, kind, stream, false, "a copy of a graph"); });
}
API Error cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, const cudaMemcpy3DParms* p) {
  cudaMemcpy3DParms copy = *p;
  return add_step(node, graph, [=](cudaStream_t stream) { return cudaMemcpy3DAsync(&copy, stream); });
}
template <class Parameters> static Error add_fill(cudaGraphNode_t* node, cudaGraph_t graph, const Parameters* p) {
  Parameters fill = *p;
  return add_step(node, graph, [=](cudaStream_t stream) {
    if (fill.elementSize == 1) return cudaMemset2DAsync(fill.dst, fill.pitch, fill.value, fill.width, fill.height, stream);
    std::string row;
    for (size_t i = 0; i < fill.width; ++i) row.append((const char*)&fill.value, fill.elementSize);
    for (size_t i = 0; i < std::max<size_t>(fill.height, 1); ++i)
      if (Error error = copy_now((char*)fill.dst + i * fill.pitch, row.data(), row.size(), cudaMemcpyHostToDevice, stream, false, "a fill of a graph")) return error;
    return cudaSuccess;
  });
}
API Error cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, const cudaMemsetParams* p) {
  return add_fill(node, graph, p);
}
static Error add_host(cudaGraphNode_t* node, cudaGraph_t graph, cudaHostFn_t function, void* data) {
  return add_step(node, graph, [=](cudaStream_t) { function(data); return cudaSuccess; });
}
API Error cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, const cudaHostNodeParams* p) {
  return add_host(node, graph, p->fn, p->userData);
}
API Error cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, cudaGraph_t child) {
  Graph steps = *(Graph*)child;
  return add_step(node, graph, [=](cudaStream_t stream) { return run_steps(steps, stream); });
}
API Error cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, cudaEvent_t event) {
  return add_step(node, graph, [=](cudaStream_t stream) { return record_now((Event*)event, stream); });
}
API Error cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, cudaEvent_t event) {
  return add_step(node, graph, [=](cudaStream_t stream) { return cudaStreamWaitEvent(stream, event, 0); });
}
API Error cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, cudaMemAllocNodeParams* p) {
  if (Error error = allocate_in_graph((Graph*)graph, &p->dptr, p->bytesize, "cudaGraphAddMemAllocNode")) return error;
  *node = (cudaGraphNode_t)((Graph*)graph)->steps.size();
  return cudaSuccess;
}
API Error cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, void* pointer) {
  return add_step(node, graph, [=](cudaStream_t stream) { return release(pointer, "a node of a graph: FreeAsync", stream); });
}
API Error cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType which, void* value) {
  bool highest = which == cudaGraphMemAttrUsedMemHigh || which == cudaGraphMemAttrReservedMemHigh;
  *(uint64_t*)value = highest ? most_graph_bytes : graph_bytes;
  return cudaSuccess;
}
API Error cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) { most_graph_bytes = graph_bytes; return cudaSuccess; }
API Error cudaDeviceGraphMemTrim(int) { return cudaSuccess; }
#if CUDART_VERSION >= 13000
API Error cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                                   const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
  static thread_local cudaGraphNode_t last;
  Graph* captured = capturing(stream);
  *status = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (!captured) return cudaSuccess;
  last = (cudaGraphNode_t)captured->steps.size();
  if (id) *id = (uintptr_t)captured;
  if (graph) *graph = (cudaGraph_t)captured;
  if (nodes) *nodes = &last;
  if (edges) *edges = nullptr;
  if (count) *count = captured->steps.size() ? 1 : 0;
  return cudaSuccess;
}
// Steps run in the order in which they are added, whatever they depend on.
API Error cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t, unsigned) { return cudaSuccess; }
API Error cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle, cudaGraph_t graph, unsigned value, unsigned flags) {
  auto made = std::make_shared<Condition>();
  made->value = value;
  made->is_reset = flags & cudaGraphCondAssignDefault;
  if (Error error = allocate(&made->place, sizeof value, DEVICE, "cudaGraphConditionalHandleCreate")) return error;
  ((Graph*)graph)->conditions.push_back(made);
  *handle = (uintptr_t)made->place;
  return fill_now(made->place, 0, sizeof value, nullptr, true, "cudaGraphConditionalHandleCreate");
}
static Error add_conditional(cudaGraphNode_t* node, cudaGraph_t graph, cudaConditionalNodeParams* p) {
  const void* place = (const void*)(uintptr_t)p->handle;
  if (!p->size || !fits(place, sizeof(unsigned), "cudaGraphAddNode")) return fail(cudaErrorInvalidValue);
  auto bodies = std::make_shared<std::vector<std::unique_ptr<Graph>>>();
  auto handles = std::make_shared<std::vector<cudaGraph_t>>();
  for (unsigned i = 0; i < p->size; ++i) {
    bodies->emplace_back(new Graph);
    handles->push_back((cudaGraph_t)bodies->back().get());
  }
  p->phGraph_out = handles->data();
  cudaGraphConditionalNodeType type = p->type;
  return add_step(node, graph, [=](cudaStream_t stream) {
    do {
      unsigned value;
      memcpy(&value, reachable(place), sizeof value);
      size_t body = type == cudaGraphCondTypeSwitch ? value : value ? 0 : type == cudaGraphCondTypeIf ? 1 : handles->size();
      if (body >= bodies->size()) break;
      if (Error error = run_steps(*(*bodies)[body], stream)) return error;
    } while (type == cudaGraphCondTypeWhile);
    return cudaSuccess;
  });
}
API Error cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t, cudaGraphNodeParams* p) {
  switch (p->type) {
    case cudaGraphNodeTypeKernel: return add_kernel(node, graph, &p->kernel);
    case cudaGraphNodeTypeMemcpy: return cudaGraphAddMemcpyNode(node, graph, nullptr, 0, &p->memcpy.copyParams);
    case cudaGraphNodeTypeMemset: return add_fill(node, graph, &p->memset);
    case cudaGraphNodeTypeHost: return add_host(node, graph, p->host.fn, p->host.userData);
    case cudaGraphNodeTypeGraph: return cudaGraphAddChildGraphNode(node, graph, nullptr, 0, p->graph.graph);
    case cudaGraphNodeTypeEmpty: return cudaGraphAddEmptyNode(node, graph, nullptr, 0);
    case cudaGraphNodeTypeEventRecord: return cudaGraphAddEventRecordNode(node, graph, nullptr, 0, p->eventRecord.event);
    case cudaGraphNodeTypeWaitEvent: return cudaGraphAddEventWaitNode(node, graph, nullptr, 0, p->eventWait.event);
    case cudaGraphNodeTypeMemFree: return cudaGraphAddMemFreeNode(node, graph, nullptr, 0, p->free.dptr);
    case cudaGraphNodeTypeConditional: return add_conditional(node, graph, &p->conditional);
    case cudaGraphNodeTypeMemAlloc:
      if (Error error = allocate_in_graph((Graph*)graph, &p->alloc.dptr, p->alloc.bytesize, "cudaGraphAddNode")) return error;
      *node = (cudaGraphNode_t)((Graph*)graph)->steps.size();
      return cudaSuccess;
    default: unsupported("cudaGraphAddNode of this type"); return cudaErrorNotSupported;
  }
}
#endif

// -- the device ---------------------------------------------------------------------------------------------------------

API Error cudaDeviceSynchronize() { return finish_all(); }
API Error cudaThreadSynchronize() { return finish_all(); }
API Error cudaDeviceReset() {
  finish_all();
  std::vector<uintptr_t> live;
  for (auto& each : allocations) live.push_back(each.first);
  for (uintptr_t address : live) {
    bool is_variable = false;
    for (auto& each : variables) is_variable |= each.second->address == address;
    if (!is_variable) release((void*)address, "cudaDeviceReset");
  }
  has_primary_context = false;
  runtime_keeps_context = false;
  return cudaSuccess;
}
API Error cudaGetLastError() {
  Error error = last_error ? last_error : sticky;
  last_error = cudaSuccess;
  return error;
}
API Error cudaPeekAtLastError() { return last_error ? last_error : sticky; }
API Error cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
API Error cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
API Error cudaSetDevice(int device) {
  if (device) return fail(cudaErrorInvalidDevice);
  start();
  return cudaSuccess;
}
API Error cudaInitDevice(int, unsigned, unsigned) { return cudaSuccess; }
API Error cudaSetValidDevices(int*, int) { return cudaSuccess; }
API Error cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
API Error cudaGetDeviceFlags(unsigned* flags) { *flags = 0; return cudaSuccess; }
API Error cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
API Error cudaDeviceGetLimit(size_t* value, cudaLimit) { *value = 8 << 20; return cudaSuccess; }
API Error cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
API Error cudaDeviceGetCacheConfig(cudaFuncCache* which) { *which = cudaFuncCachePreferNone; return cudaSuccess; }
API Error cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
API Error cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* which) { *which = cudaSharedMemBankSizeFourByte; return cudaSuccess; }
API Error cudaDeviceCanAccessPeer(int* can, int, int) { *can = 0; return cudaSuccess; }
API Error cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) { *value = 0; return fail(cudaErrorInvalidDevice); }
API Error cudaDeviceDisablePeerAccess(int) { return fail(cudaErrorPeerAccessNotEnabled); }
API Error cudaDeviceEnablePeerAccess(int, unsigned) { return fail(cudaErrorPeerAccessUnsupported); }
API Error cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  *value = attribute(which);
  return device ? fail(cudaErrorInvalidDevice) : cudaSuccess;
}
API Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
API Error cudaDeviceGetPCIBusId(char* text, int length, int) { snprintf(text, length, "0000:%02x:00.0", device_number() & 0xFF); return cudaSuccess; }
API Error cudaDeviceGetByPCIBusId(int* device, const char*) { *device = 0; return cudaSuccess; }
API Error cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
API Error cudaDriverGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
API Error cudaChooseDevice(int* device, const cudaDeviceProp*) { *device = 0; return cudaSuccess; }
API Error cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device) return fail(cudaErrorInvalidDevice);
  start();
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", device_name().c_str());
  memcpy(&p->uuid, std::to_string(device_number()).c_str(), setting("GEMMGEN_DEVICE_NAME") ? 8 : 0);
  p->pciBusID = attribute(cudaDevAttrPciBusId);
  p->totalGlobalMem = device_bytes();
  p->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
  p->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 1u << 30;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = architecture() / 10;
  p->minor = architecture() % 10;
  p->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = p->cooperativeLaunch = p->concurrentManagedAccess = 1;
  p->asyncEngineCount = p->memoryPoolsSupported = p->streamPrioritiesSupported = 1;
  p->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
  p->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
  p->persistingL2CacheMaxSize = attribute(cudaDevAttrMaxPersistingL2CacheSize);
  p->accessPolicyMaxWindowSize = attribute(cudaDevAttrMaxAccessPolicyWindowSize);
  p->textureAlignment = p->texturePitchAlignment = 512;
  p->maxTexture1D = p->maxTexture2D[0] = p->maxTexture2D[1] = 65536;
  return cudaSuccess;
}
API Error cudaProfilerStart() { return cudaSuccess; }
API Error cudaProfilerStop() { return cudaSuccess; }
API Error cudaCtxResetPersistingL2Cache() { return cudaSuccess; }

// -- tensor maps --------------------------------------------------------------------------------------------------------

API CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base, const cuuint64_t* extents, const cuuint64_t* strides,
                                    const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  uint32_t words[6] = {(uint32_t)type, rank, (uint32_t)interleave, (uint32_t)swizzle, (uint32_t)promotion, (uint32_t)fill};
  std::string body = raw(words) + raw((uint64_t)(uintptr_t)base), answer;
  body.append((const char*)extents, 8 * rank).append((const char*)strides, 8 * (rank - 1));
  body.append((const char*)box, 4 * rank).append((const char*)steps, 4 * rank);
  if (ask(TENSOR_MAP, body, &answer) || answer.size() != sizeof *map) {
    say("cuTensorMapEncodeTiled: %s", answer.c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  memcpy(map, answer.data(), sizeof *map);
  return CUDA_SUCCESS;
}
static Error entry_point(const char* name, void** function, cudaDriverEntryPointQueryResult* result) {
  cuGetProcAddress(name, function, 0, 0, nullptr);
  if (!*function) unsupported(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : fail(cudaErrorSymbolNotFound);
}
API Error cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, cudaDriverEntryPointQueryResult* result) { return entry_point(name, function, result); }
API Error cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  return entry_point(name, function, result);
}

// -- names of errors ----------------------------------------------------------------------------------------------------

API const char* cudaGetErrorName(Error error) {
  switch ((int)error) {
#define NAME(error) case error: return #error;
    NAME(cudaSuccess) NAME(cudaErrorInvalidValue) NAME(cudaErrorMemoryAllocation) NAME(cudaErrorInvalidConfiguration) NAME(cudaErrorInvalidPitchValue)
    NAME(cudaErrorInvalidSymbol) NAME(cudaErrorInvalidDeviceFunction) NAME(cudaErrorInvalidDevice) NAME(cudaErrorInvalidResourceHandle)
    NAME(cudaErrorMissingConfiguration) NAME(cudaErrorIllegalAddress) NAME(cudaErrorMisalignedAddress) NAME(cudaErrorLaunchFailure) NAME(cudaErrorAssert)
    NAME(cudaErrorLaunchTimeout) NAME(cudaErrorNotSupported) NAME(cudaErrorPeerAccessUnsupported) NAME(cudaErrorSymbolNotFound) NAME(cudaErrorNotReady)
    NAME(cudaErrorStreamCaptureUnsupported) NAME(cudaErrorStreamCaptureUnmatched) NAME(cudaErrorIllegalInstruction)
#undef NAME
    default: return "unrecognized error code";
  }
}
API const char* cudaGetErrorString(Error error) {
  switch ((int)error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorMisalignedAddress: return "misaligned address";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorAssert: return "device-side assert triggered";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotSupported: return "operation not supported";
    default: return cudaGetErrorName(error);
  }
}
