// Calls of NCCL: what is sent, in which communicator, and its number there. A call puts work into a stream and
// returns; its record is that of the call on the host.
#include <algorithm>

#include "format/json.hpp"
#include "intercept/device_record.hpp"

namespace dft {
namespace {

// By address: a communicator, or its messages to or from one peer. Entries are added and never removed.
struct Counter {
  std::atomic<uint64_t> key{0};
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> name{0};  // the same in all processes that share it; 0 if its creation was not seen
  std::atomic<int32_t> ranks{0};
  std::atomic<uint32_t> splits{0};
};

constexpr size_t kCounters = 1024;
Counter g_counters[kCounters];

uint64_t key_of(const void* comm) { return reinterpret_cast<uintptr_t>(comm); }

// Addresses have 48 bits.
uint64_t key_of(const void* comm, int peer, bool sends) {
  return key_of(comm) | uint64_t(peer + 1) << 49 | uint64_t(sends) << 48;
}

bool belongs_to(uint64_t key, const void* comm) { return key << 16 == key_of(comm) << 16; }

uint64_t mixed(uint64_t value) { return (value ^ value >> 31) * 0x9e3779b97f4a7c15u; }

// Null if there is no room.
Counter* counter_of(uint64_t key) {
  for (size_t i = 0, at = mixed(key) >> 54; i < 64; ++i, at = (at + 1) % kCounters) {
    Counter& c = g_counters[at];
    uint64_t found = c.key.load(std::memory_order_acquire);
    if (found == key) return &c;
    if (found == 0 && (c.key.compare_exchange_strong(found, key) || found == key)) return &c;
  }
  return nullptr;
}

void name_communicator(const void* comm, uint64_t name, int ranks) {
  // The address may have been another communicator's.
  for (Counter& c : g_counters)
    if (belongs_to(c.key.load(std::memory_order_relaxed), comm)) c.calls.store(0, std::memory_order_relaxed);
  Counter* c = counter_of(key_of(comm));
  if (!c) return;
  c->ranks.store(ranks, std::memory_order_relaxed);
  c->splits.store(0, std::memory_order_relaxed);
  c->name.store(name ? name : 1, std::memory_order_release);
}

char* put_name(char* p, uint64_t name) {
  for (int shift = 60; shift >= 0; shift -= 4) *p++ = "0123456789abcdef"[name >> shift & 15];
  return p;
}

int64_t size_of(size_t count, int type) {
  constexpr int kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // ncclInt8 to ncclFloat8e5m2
  return type >= 0 && type < int(std::size(kSizes)) ? int64_t(count) * kSizes[type] : -1;
}

DeviceFacts communication(size_t count, int type, const void* comm, const void* stream) {
  DeviceFacts facts = on_stream(stream, size_of(count, type));
  facts.comm = comm;
  facts.collective = true;
  return facts;
}

template <int S, int K>
int hook_reduction(const void* from, void* to, size_t count, int type, int op, void* comm, void* stream) {
  return timed<S, K>(Limit::kAlways, communication(count, type, comm, stream), from, to, count, type, op, comm, stream);
}

template <int S, int K>
int hook_exchange(const void* from, void* to, size_t count, int type, void* comm, void* stream) {
  return timed<S, K>(Limit::kAlways, communication(count, type, comm, stream), from, to, count, type, comm, stream);
}

template <int S, int K>
int hook_rooted(const void* from, void* to, size_t count, int type, int root, void* comm, void* stream) {
  return timed<S, K>(Limit::kAlways, communication(count, type, comm, stream), from, to, count, type, root, comm,
                     stream);
}

template <int S, int K>
int hook_rooted_reduction(const void* from, void* to, size_t count, int type, int op, int root, void* comm,
                          void* stream) {
  return timed<S, K>(Limit::kAlways, communication(count, type, comm, stream), from, to, count, type, op, root, comm,
                     stream);
}

// To or from a peer; in ncclBcast it is the root.
template <int S, int K>
int hook_message(void* buffer, size_t count, int type, int peer, void* comm, void* stream) {
  DeviceFacts facts = communication(count, type, comm, stream);
  if (S != D_ncclBcast) {
    facts.collective = false;
    facts.peer = peer;
    facts.sends = S == D_ncclSend;
  }
  return timed<S, K>(Limit::kAlways, facts, buffer, count, type, peer, comm, stream);
}

// Where the calls of a group are actually made, and wait if they have to.
template <int S, int K>
int hook_group_end() {
  return timed<S, K>(Limit::kBlocking, DeviceFacts());
}

struct UniqueId {
  char bytes[128];
};

uint64_t name_of_id(const UniqueId& id) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : id.bytes) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return hash;
}

// The result is there from the beginning, even if its set-up goes on in the background.
bool created(int ret, void* const* comm) {
  constexpr int kSuccess = 0, kInProgress = 7;
  return (ret == kSuccess || ret == kInProgress) && *comm;
}

template <int S, int K>
int hook_init_rank(void** comm, int ranks, UniqueId id, int rank) {
  int ret = timed<S, K>(Limit::kAlways, DeviceFacts(), comm, ranks, id, rank);
  if (created(ret, comm)) name_communicator(*comm, name_of_id(id), ranks);
  return ret;
}

template <int S, int K>
int hook_init_rank_config(void** comm, int ranks, UniqueId id, int rank, void* config) {
  int ret = timed<S, K>(Limit::kAlways, DeviceFacts(), comm, ranks, id, rank, config);
  if (created(ret, comm)) name_communicator(*comm, name_of_id(id), ranks);
  return ret;
}

template <int S, int K>
int hook_init_rank_scalable(void** comm, int ranks, int rank, int count, UniqueId* ids, void* config) {
  int ret = timed<S, K>(Limit::kAlways, DeviceFacts(), comm, ranks, rank, count, ids, config);
  if (created(ret, comm) && count > 0) name_communicator(*comm, name_of_id(ids[0]), ranks);
  return ret;
}

// All ranks of the parent split it at the same place in their order of calls, with one color for each part.
template <int S, int K>
int hook_split(void* parent, int color, int key, void** comm, void* config) {
  int ret = timed<S, K>(Limit::kAlways, DeviceFacts(), parent, color, key, comm, config);
  Counter* c = counter_of(key_of(parent));
  uint64_t name = c ? c->name.load(std::memory_order_acquire) : 0;
  uint32_t nth = c ? c->splits.fetch_add(1, std::memory_order_relaxed) : 0;
  if (name && created(ret, comm)) name_communicator(*comm, mixed(mixed(name + nth) + uint64_t(color)), 0);
  return ret;
}

}  // namespace

char* put_communicator(char* p, const DeviceFacts& facts) {
  if (!facts.comm) return p;
  Counter* own = counter_of(key_of(facts.comm));
  uint64_t name = own ? own->name.load(std::memory_order_acquire) : 0;
  p = put(put_name(put(p, ",\"comm\":\""), name ? name : key_of(facts.comm)), "\"");
  if (own && own->ranks.load(std::memory_order_relaxed))
    p = put_int(put(p, ",\"ranks\":"), own->ranks.load(std::memory_order_relaxed));
  Counter* order = facts.collective ? own : counter_of(key_of(facts.comm, facts.peer, facts.sends));
  if (!facts.collective) p = put_int(put(p, ",\"peer\":"), facts.peer);
  if (order) p = put_uint(put(p, ",\"seq\":"), order->calls.fetch_add(1, std::memory_order_relaxed) + 1);
  return p;
}

#define COMM_HOOK ADD_COPIES
void add_comm_hooks(std::vector<Hook>* out) {
#include "intercept/device_hooks.def"
}

}  // namespace dft
