// What every compiled kernel begins with (gemmgen/emulator/native_threads.py), behind native_runs.c: memory with its checks, and the course of
// blocks. Threads run one after another, each up to its next barrier. An access that is not certainly free of hazards gives the launch up.
#include <sched.h>
#include <stdlib.h>

enum { EXITED, GIVEN_UP, AT_BARRIER, IN_WARP, RUNNING };
enum { PAGE_SHIFT = 16, PAGE = 1 << PAGE_SHIFT, WARP = 32, MOST_WARPS = 32 };
enum { WHOLE, NONE, PARTS };  // written bytes of a page (device.py)
// A record of an access is its time << CODE_BITS | code, the code being a thread of the block or one of these. MANY: several threads of the
// block; OF_WARP + w: several threads of a warp; BLOCKS: threads of several blocks; UPDATED: by atomic operations of the block's threads.
enum { CODE_BITS = 11, CODES = 1 << CODE_BITS, MANY = 1024, BLOCKS, UPDATED, UPDATED_BY_BLOCKS, OF_WARP = 1056 };
enum { LAST_TIME = (1 << (32 - CODE_BITS)) - 64 };

struct Granule { uint32_t writer, reader; };

// The thread that runs, and the records that it makes: its own, and those of readers in the present phase. defers: floating-point sums of
// atomic operations are put off.
struct Who { uint32_t thread, warp, me, many, of_warp, blocks, launch, block, phase, defers; };

// An atomic addition that is put off until all earlier blocks have ended: the instruction's number << 48 | the place in memory, and the bits.
struct Deferred { uint64_t place, value; };

struct Region {
  uint64_t start, size;
  uint8_t *read, *written, *updated;  // flags of units; null: none yet
  uint64_t units;
  int32_t unit_shift;
  uint8_t writable, watched, partly, met;  // partly: some page is not wholly written; met: an access has
};

struct Context {
  uint8_t *memory;
  uint64_t base;
  struct Region *regions;
  int64_t region_count;
  struct Granule *granules;
  uint8_t *page_state, **unwritten, **saved, *own_flags;  // own_flags: pages whose unwritten flags are this launch's copy
  uint32_t grid[3], block[3], threads, dynamic_bytes, total_bytes;
  uint32_t now, launch_start, block_start, phase_start;
  uint32_t warp_start[MOST_WARPS];
  uint8_t *shared;
  const uint8_t *gaps;  // of shared granules: 1 between variables
  struct Granule *shared_granules;
  uint64_t shared_bytes;
  uint8_t *local, *local_state;
  uint64_t thread_limit;
  uint64_t *counts;  // executions of each basic block, by threads
  uint64_t bytes;  // of memory
  int32_t *hints;
  int32_t why, place;
  int32_t shares;  // other contexts run blocks of the launch at the same time
  int32_t *lock;
  struct Deferred *log;
  int64_t logged, room;
};

enum { STUCK = -10, LANE_IS_MISSING = -11, BARRIERS_DIFFER = -12, BARRIER_IS_MISSED = -13, NO_TIME_LEFT = -14 };  // Context.why beside lines
struct Site { int32_t kind, form; };
enum { BARRIER, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BUTTERFLY, SHUFFLE_INDEX, VOTE_ALL, VOTE_ANY, VOTE_UNIFORM, VOTE_BALLOT, WARP_BARRIER,
       REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_SMIN, REDUX_SMAX, REDUX_AND, REDUX_OR, REDUX_XOR, BARRIER_POPC, BARRIER_AND, BARRIER_OR,
       MATCH_ANY, MATCH_ALL, ACTIVE };

struct Thread {
  int32_t at, state, site;
  uint32_t number, tid[3], ctaid[3];
  uint64_t iterations;
  uint32_t x[4], r[2];
  uint8_t lacks, lacked;  // the value given to a shuffle, or taken from one, is of a lane that takes no part
  uint64_t s[SAVED + 1];
};

#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define GIVE_UP(reason) do { c->why = (reason); c->place = PLACE; return GIVEN_UP; } while (0)

static __attribute__((noinline)) int64_t region_of(const struct Context *c, uint64_t address) {
  int64_t low = 0, high = c->region_count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (c->regions[middle].start <= address) low = middle + 1; else high = middle;
  }
  return low - 1;
}

// The region of an access of `width` bytes; null if there is none, or if the address is no multiple of the width.
static inline struct Region *place(const struct Context *c, int32_t *hint, uint64_t address, uint32_t width) {
  struct Region *r = &c->regions[*hint];
  uint64_t offset = address - r->start;
  if (UNLIKELY(offset >= r->size || r->size - offset < width)) {
    const int64_t found = region_of(c, address);
    if (found < 0) return 0;
    r = &c->regions[found];
    offset = address - r->start;
    if (offset >= r->size || r->size - offset < width) return 0;
    *hint = (int32_t)found;
    r->met = 1;
  }
  return address & (width - 1) ? 0 : r;
}

static __attribute__((noinline)) int first_flags(uint8_t **place, const struct Region *r) {
  uint8_t *none = 0, *flags = calloc(r->units, 1);
  if (!flags) return 0;
  if (!__atomic_compare_exchange_n(place, &none, flags, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) free(flags);
  return 1;
}
static inline void touch(uint8_t **place, const struct Region *r, uint64_t offset, uint32_t width) {
  if (UNLIKELY(!*place) && !first_flags(place, r)) return;
  uint8_t *flags = *place;
  if (r->unit_shift == 0) {
    memset(flags + offset, 1, width);
  } else {
    flags += offset >> r->unit_shift;
    for (uint32_t unit = 0; unit == 0 || unit < width >> r->unit_shift; ++unit) flags[unit] = 1;
  }
}

static inline struct Who who_runs(const struct Context *c, uint32_t thread) {
  const uint32_t warp = thread / WARP, since = c->warp_start[warp] > c->phase_start ? c->warp_start[warp] : c->phase_start;
  const struct Who w = {thread, warp, c->now << CODE_BITS | thread, c->phase_start << CODE_BITS | MANY, since << CODE_BITS | (OF_WARP + warp),
                        c->launch_start << CODE_BITS | BLOCKS, c->launch_start << CODE_BITS, c->block_start << CODE_BITS,
                        c->phase_start << CODE_BITS, DEFERS && c->shares};
  return w;
}

// True if an access happened before the present one, for certain; both by threads of this launch.
static inline int is_before(const struct Who *w, uint32_t record) {
  const uint32_t code = record & (CODES - 1);
  if (record < w->block || code == BLOCKS || code == UPDATED_BY_BLOCKS) return 0;
  if (record < w->phase || code == w->thread) return 1;
  if (code == UPDATED || code == MANY) return 0;
  return (code >= OF_WARP ? code - OF_WARP : code / WARP) == w->warp && record >> CODE_BITS < w->of_warp >> CODE_BITS;
}

// The record of a granule's readers with one more.
static __attribute__((noinline)) uint32_t read_by_several(const struct Who *w, uint32_t record) {
  const uint32_t code = record & (CODES - 1);
  if (code == BLOCKS || record < w->block) return w->blocks;
  if (record < w->phase || code == w->thread) return w->me;
  if (code == MANY || (code >= OF_WARP ? code - OF_WARP : code / WARP) != w->warp) return w->many;
  return record >> CODE_BITS < w->of_warp >> CODE_BITS ? w->me : w->of_warp;
}
static inline void note_reader(const struct Who *w, struct Granule *g, uint32_t start) {
  const uint32_t reader = g->reader;
  if (reader < start) g->reader = w->me;
  else if (reader != w->me && reader != w->of_warp && reader != w->many && reader != w->blocks) g->reader = read_by_several(w, reader);
}

static inline int is_update(uint32_t record) { return (record & (CODES - 1)) == UPDATED; }

// Notes a plain access to granules; 0 if it may conflict with one of another thread, or would meet a sum that is put off (`defers`). Accesses
// before `start` do not count.
static inline int note_read(const struct Who *w, struct Granule *g, uint32_t count, uint32_t start, int constant, int defers) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t writer = g[i].writer;
    if (UNLIKELY(writer >= start) && (constant || !is_before(w, writer) || (defers && is_update(writer)))) return 0;
    note_reader(w, &g[i], start);
  }
  return 1;
}
static inline int note_write(const struct Who *w, struct Granule *g, uint32_t count, uint32_t start, int defers) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t writer = g[i].writer, reader = g[i].reader;
    if (writer >= start && writer != w->me && (!is_before(w, writer) || (defers && is_update(writer)))) return 0;
    if (reader >= start && reader != w->me && !is_before(w, reader)) return 0;
    g[i].writer = w->me;
    g[i].reader = 0;
  }
  return 1;
}
static inline int note_update(const struct Who *w, struct Granule *g, uint32_t count, uint32_t start, int defers) {
  const uint32_t now = w->me & ~(uint32_t)(CODES - 1);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t writer = g[i].writer, reader = g[i].reader, code = writer & (CODES - 1);
    if (reader >= start && !is_before(w, reader)) return 0;
    if (writer < start) {
      g[i].writer = now | UPDATED;
    } else if (code == UPDATED_BY_BLOCKS || (code == UPDATED && writer < w->block)) {
      g[i].writer = now | UPDATED_BY_BLOCKS;
    } else if (code == UPDATED) {
      g[i].writer = now | UPDATED;
    } else if (!is_before(w, writer)) {
      return 0;
    } else if (writer < w->phase) {
      g[i].writer = now | UPDATED;
    } else if (defers) {
      return 0;
    }
    // Else a plain write of this thread in this phase: it stays the one that others conflict with.
  }
  return 1;
}

// 0 if some of the bytes are unwritten.
static inline int is_written(const struct Context *c, uint64_t offset, uint32_t width) {
  const uint64_t page = offset >> PAGE_SHIFT;
  if (c->page_state[page] == WHOLE) return 1;
  const uint8_t *flags = c->unwritten[page];
  if (!flags) return 0;
  flags += offset & (PAGE - 1);
  for (uint32_t i = 0; i < width; ++i) if (flags[i]) return 0;
  return 1;
}
static void lock(struct Context *c) { while (c->shares && __atomic_exchange_n(c->lock, 1, __ATOMIC_ACQUIRE)) sched_yield(); }
static void unlock(struct Context *c) { if (c->shares) __atomic_store_n(c->lock, 0, __ATOMIC_RELEASE); }
static int make_own(struct Context *c, uint64_t page) {
  if (c->own_flags[page]) return 1;
  uint8_t *own = malloc(PAGE);
  if (!own) return 0;
  if (c->unwritten[page]) memcpy(own, c->unwritten[page], PAGE); else memset(own, 1, PAGE);
  c->unwritten[page] = own;
  __atomic_store_n(&c->own_flags[page], 1, __ATOMIC_RELEASE);
  return 1;
}
static __attribute__((noinline)) int note_written(struct Context *c, uint64_t offset, uint32_t width) {
  const uint64_t page = offset >> PAGE_SHIFT;
  if (c->page_state[page] == WHOLE) return 1;
  if (!__atomic_load_n(&c->own_flags[page], __ATOMIC_ACQUIRE)) {
    lock(c);
    const int made = make_own(c, page);
    unlock(c);
    if (!made) return 0;
  }
  memset(c->unwritten[page] + (offset & (PAGE - 1)), 0, width);
  return 1;
}
static int copy_page(struct Context *c, uint64_t page) {
  if (c->saved[page]) return 1;
  uint8_t *copy = malloc(PAGE);
  if (!copy) return 0;
  const uint64_t start = page << PAGE_SHIFT;
  memcpy(copy, c->memory + start, c->bytes - start < PAGE ? c->bytes - start : PAGE);
  __atomic_store_n(&c->saved[page], copy, __ATOMIC_RELEASE);
  return 1;
}
static __attribute__((noinline)) int save(struct Context *c, uint64_t page) {
  lock(c);
  const int copied = copy_page(c, page);
  unlock(c);
  return copied;
}

static inline const uint8_t *read_global(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w, int constant) {
  struct Region *r = place(c, hint, address, width);
  if (UNLIKELY(!r)) return 0;
  const uint64_t offset = address - c->base;
  if (UNLIKELY(r->partly) && !is_written(c, offset, width)) return 0;
  touch(&r->read, r, address - r->start, width);
  if (r->watched && !note_read(w, c->granules + (offset >> GRANULE_SHIFT), width >> GRANULE_SHIFT, w->launch, constant, w->defers))
    return 0;
  return c->memory + offset;
}
static inline uint8_t *write_global(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w) {
  struct Region *r = place(c, hint, address, width);
  if (UNLIKELY(!r || !r->writable || !r->watched)) return 0;
  const uint64_t offset = address - c->base;
  if (UNLIKELY(!c->saved[offset >> PAGE_SHIFT]) && !save(c, offset >> PAGE_SHIFT)) return 0;
  if (UNLIKELY(r->partly) && !note_written(c, offset, width)) return 0;
  touch(&r->written, r, address - r->start, width);
  if (!note_write(w, c->granules + (offset >> GRANULE_SHIFT), width >> GRANULE_SHIFT, w->launch, w->defers)) return 0;
  return c->memory + offset;
}
// An atomic operation, or a load whose value one checks.
static inline uint8_t *update_or_guess(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w, int guesses) {
  struct Region *r = place(c, hint, address, width);
  if (UNLIKELY(!r || !r->writable || !r->watched)) return 0;
  const uint64_t offset = address - c->base;
  if (UNLIKELY(!c->saved[offset >> PAGE_SHIFT]) && !save(c, offset >> PAGE_SHIFT)) return 0;
  if (UNLIKELY(r->partly) && !is_written(c, offset, width)) return 0;
  touch(guesses ? &r->read : &r->updated, r, address - r->start, width);
  if (!note_update(w, c->granules + (offset >> GRANULE_SHIFT), width >> GRANULE_SHIFT, w->launch, w->defers)) return 0;
  return c->memory + offset;
}

static inline uint8_t *update_global(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w) {
  return update_or_guess(c, hint, address, width, w, 0);
}
static inline uint8_t *guess_global(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w) {
  return update_or_guess(c, hint, address, width, w, 1);
}

// Shared memory. Its granules that nothing has written have no writer of this block.
static inline int is_in_shared(const struct Context *c, uint64_t address, uint32_t width) {
  const uint64_t offset = address - SHARED_START;
  return offset < c->shared_bytes && c->shared_bytes - offset >= width && !(address & (width - 1));
}
static inline const uint8_t *read_shared(struct Context *c, uint64_t address, uint32_t width, const struct Who *w) {
  if (UNLIKELY(!is_in_shared(c, address, width))) return 0;
  struct Granule *g = c->shared_granules + (address >> SHARED_SHIFT);
  for (uint32_t i = 0; i < width >> SHARED_SHIFT; ++i) {
    const uint32_t writer = g[i].writer;
    if (UNLIKELY(writer < w->block || (writer >= w->phase && !is_before(w, writer)))) return 0;
    note_reader(w, &g[i], w->block);
  }
  return c->shared + address;
}
static inline uint8_t *write_shared(struct Context *c, uint64_t address, uint32_t width, const struct Who *w) {
  if (UNLIKELY(!is_in_shared(c, address, width))) return 0;
  const uint64_t g = address >> SHARED_SHIFT;
  if (HAS_GAPS)
    for (uint32_t i = 0; i < width >> SHARED_SHIFT; ++i) if (c->gaps[g + i]) return 0;
  return note_write(w, c->shared_granules + g, width >> SHARED_SHIFT, w->block, 0) ? c->shared + address : 0;
}
static inline uint8_t *update_shared(struct Context *c, uint64_t address, uint32_t width, const struct Who *w) {
  if (UNLIKELY(!is_in_shared(c, address, width))) return 0;
  struct Granule *g = c->shared_granules + (address >> SHARED_SHIFT);
  for (uint32_t i = 0; i < width >> SHARED_SHIFT; ++i) if (g[i].writer < w->block) return 0;
  return note_update(w, g, width >> SHARED_SHIFT, w->block, 0) ? c->shared + address : 0;
}

static inline uint8_t *guess_shared(struct Context *c, uint64_t address, uint32_t width, const struct Who *w) {
  return update_shared(c, address, width, w);
}

static inline uint8_t *at_local(struct Context *c, uint64_t address, uint32_t width, const struct Who *w, int writes) {
  if (UNLIKELY(address >= LOCAL_BYTES || LOCAL_BYTES - address < width || (address & (width - 1)))) return 0;
  const uint64_t offset = (SUSPENDS ? (uint64_t)w->thread * LOCAL_BYTES : 0) + address;
  if (writes) memset(c->local_state + offset, 1, width);
  else for (uint32_t i = 0; i < width; ++i) if (UNLIKELY(!c->local_state[offset + i])) return 0;
  return c->local + offset;
}

static const uint8_t *read_generic(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w) {
  if (address >> 32 == SHARED_WINDOW >> 32) return read_shared(c, address - SHARED_WINDOW, width, w);
  if (address >> 32 == LOCAL_WINDOW >> 32) return at_local(c, address - LOCAL_WINDOW, width, w, 0);
  return read_global(c, hint, address, width, w, 0);
}
static uint8_t *write_generic(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w) {
  if (address >> 32 == SHARED_WINDOW >> 32) return write_shared(c, address - SHARED_WINDOW, width, w);
  if (address >> 32 == LOCAL_WINDOW >> 32) return at_local(c, address - LOCAL_WINDOW, width, w, 1);
  return write_global(c, hint, address, width, w);
}
static inline uint8_t *update_or_guess_generic(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w, int guesses) {
  if (address >> 32 == SHARED_WINDOW >> 32) return update_shared(c, address - SHARED_WINDOW, width, w);
  if (address >> 32 == LOCAL_WINDOW >> 32) return 0;
  return update_or_guess(c, hint, address, width, w, guesses);
}
static uint8_t *update_generic(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w) {
  return update_or_guess_generic(c, hint, address, width, w, 0);
}
static uint8_t *guess_generic(struct Context *c, int32_t *hint, uint64_t address, uint32_t width, const struct Who *w) {
  return update_or_guess_generic(c, hint, address, width, w, 1);
}

// Puts an addition off; 0 without room for it.
static int defer(struct Context *c, const uint8_t *p, uint64_t number, uint64_t value) {
  if (UNLIKELY(c->logged == c->room)) {
    const int64_t room = c->room ? 2 * c->room : 1024;
    struct Deferred *log = realloc(c->log, room * sizeof *log);
    if (!log) return 0;
    c->log = log;
    c->room = room;
  }
  c->log[c->logged++] = (struct Deferred){number << 48 | (uint64_t)(p - c->memory), value};
  return 1;
}

// A sum of float64 takes a NaN as it is, quiet or not.
static inline uint64_t sum_of_bits(uint64_t old, uint64_t value) {
  const double a = double_of(old), b = double_of(value);
  return b != b ? value : a != a ? old : raw_double(a + b);
}

#define MOVES(bits) \
  static inline uint##bits##_t get_##bits(const uint8_t *p) { uint##bits##_t value; memcpy(&value, p, sizeof value); return value; } \
  static inline void put_##bits(uint8_t *p, uint##bits##_t value) { memcpy(p, &value, sizeof value); }
MOVES(8)
MOVES(16)
MOVES(32)
MOVES(64)
