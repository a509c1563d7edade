// Calls of the CUDA runtime in which the host may have to wait: copies, synchronisation, memory; and the launch of
// graphs, which is how a replayed step begins. Kernel launches are not among them.
#include "intercept/device_record.hpp"

namespace dft {
namespace {

template <int S, int K>
int hook_memcpy_async(void* to, const void* from, size_t count, int kind, void* stream) {
  return timed<S, K>(Limit::kBlocking, on_stream(stream, int64_t(count), kind), to, from, count, kind, stream);
}

template <int S, int K>
int hook_memcpy(void* to, const void* from, size_t count, int kind) {
  return timed<S, K>(Limit::kBlocking, of_bytes(int64_t(count), kind), to, from, count, kind);
}

template <int S, int K>
int hook_memcpy_2d_async(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         int kind, void* stream) {
  return timed<S, K>(Limit::kBlocking, on_stream(stream, int64_t(width * height), kind), to, to_pitch, from, from_pitch,
                     width, height, kind, stream);
}

template <int S, int K>
int hook_memcpy_2d(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                   int kind) {
  return timed<S, K>(Limit::kBlocking, of_bytes(int64_t(width * height), kind), to, to_pitch, from, from_pitch, width,
                     height, kind);
}

template <int S, int K>
int hook_memcpy_peer_async(void* to, int to_device, const void* from, int from_device, size_t count, void* stream) {
  constexpr int kDeviceToDevice = 3;
  return timed<S, K>(Limit::kBlocking, on_stream(stream, int64_t(count), kDeviceToDevice), to, to_device, from,
                     from_device, count, stream);
}

template <int S, int K>
int hook_memset_async(void* at, int value, size_t count, void* stream) {
  return timed<S, K>(Limit::kBlocking, on_stream(stream, int64_t(count)), at, value, count, stream);
}

template <int S, int K>
int hook_memset(void* at, int value, size_t count) {
  return timed<S, K>(Limit::kBlocking, of_bytes(int64_t(count)), at, value, count);
}

template <int S, int K>
int hook_stream_synchronize(void* stream) {
  return timed<S, K>(Limit::kBlocking, on_stream(stream), stream);
}

template <int S, int K>
int hook_event_synchronize(void* event) {
  return timed<S, K>(Limit::kBlocking, DeviceFacts(), event);
}

template <int S, int K>
int hook_device_synchronize() {
  return timed<S, K>(Limit::kBlocking, DeviceFacts());
}

template <int S, int K>
int hook_graph_launch(void* graph, void* stream) {
  DeviceFacts facts = on_stream(stream);
  facts.graph = graph;
  return timed<S, K>(Limit::kAlways, facts, graph, stream);
}

template <int S, int K>
int hook_malloc(void** at, size_t size) {
  return timed<S, K>(Limit::kStall, of_bytes(int64_t(size)), at, size);
}

template <int S, int K>
int hook_malloc_flags(void** at, size_t size, unsigned flags) {
  return timed<S, K>(Limit::kStall, of_bytes(int64_t(size)), at, size, flags);
}

template <int S, int K>
int hook_malloc_async(void** at, size_t size, void* stream) {
  return timed<S, K>(Limit::kStall, on_stream(stream, int64_t(size)), at, size, stream);
}

template <int S, int K>
int hook_free(void* at) {
  return timed<S, K>(Limit::kStall, DeviceFacts(), at);
}

template <int S, int K>
int hook_free_async(void* at, void* stream) {
  return timed<S, K>(Limit::kStall, on_stream(stream), at, stream);
}

template <int S, int K>
int hook_host_register(void* at, size_t size, unsigned flags) {
  return timed<S, K>(Limit::kStall, of_bytes(int64_t(size)), at, size, flags);
}

}  // namespace

#define DEVICE_HOOK ADD_COPIES
void add_device_hooks(std::vector<Hook>* out) {
#include "intercept/device_hooks.def"
}

}  // namespace dft
