// Accesses to memory with their checks in one call, for gemmgen/emulator/native.py. A call that meets anything out of the ordinary
// changes nothing that matters and says so; the Python code behind it then does the same step by step.
#include <stdint.h>
#include <string.h>

enum { UNWRITTEN = 1, WRITTEN = 2, READ = 4 };  // bits of a granule's state (hazards/shadow.py)
enum { DONE, REMEMBER, LOST, SETTLE, UNSEEN, ORDINARY };
enum { IS_STORE = 1, IS_PRIVATE = 2, MAY_BE_OWN = 4, HAS_PENDING = 8, IS_SIGNED = 16 };

struct Access {
  const int64_t *base;  // of each lane's memory, in bytes; null: one memory for all
  uint64_t start, first, last, mask;  // an offset is address - start; allowed from `first` on, by up to `last` bytes, multiples of mask + 1
  uint8_t *data;
  uint8_t *state;  // of granules; null: nothing is checked
  int64_t *writers, *readers;  // last plain write, and reading thread, of each granule
  const uint8_t *many_readers;
  const int64_t *threads;
  const uint8_t *looked;  // pages whose granules have a state; null: all
  uint8_t *touched;  // flags of units from `touched_start` on; null: none
  uint64_t touched_start;
  void *rows[8];
  int32_t granule_shift, granules, page_shift, touched_shift, touched_units, element, elements, kind, register_bytes;
  uint8_t matters, watched, keep, mark;
};

// Each loop is written once, for lanes that are all of them or listed.
#define EACH_LANE(body) \
  if (lanes) \
    for (int64_t i = 0; i < count; ++i) { const int64_t lane = lanes[i]; body } \
  else \
    for (int64_t i = 0; i < count; ++i) { const int64_t lane = i; body }

// Byte offsets of the lanes; 0 if all are allowed.
#define PLACE(type) \
  static int place_##type(const struct Access *a, const type *restrict addresses, int64_t count, const int64_t *restrict lanes, \
                          int64_t *restrict offsets) { \
    const uint64_t start = a->start, first = a->first; \
    const int64_t *restrict base = a->base; \
    uint64_t bits = 0, high = 0; \
    if (!base) { \
      for (int64_t i = 0; i < count; ++i) { \
        const uint64_t offset = addresses[i] - start, inside = offset - first; \
        bits |= offset; \
        high = inside > high ? inside : high; \
        offsets[i] = (int64_t)offset; \
      } \
    } else { \
      EACH_LANE(const uint64_t offset = addresses[i] - start; bits |= offset; high = offset > high ? offset : high; \
                offsets[i] = (int64_t)offset + base[lane];) \
    } \
    return high > a->last || (bits & a->mask) != 0; \
  }
PLACE(uint32_t)
PLACE(uint64_t)

// The states of all granules, which are `type` together: all bits that are set somewhere, and those that are set everywhere.
#define STATES(type) \
  static void states_##type(const uint8_t *restrict state, int shift, const int64_t *restrict offsets, int64_t count, uint64_t *any, \
                            uint64_t *every) { \
    type some = 0, all = (type)~0ull; \
    for (int64_t i = 0; i < count; ++i) { \
      type found; \
      memcpy(&found, state + (offsets[i] >> shift), sizeof found); \
      some |= found; \
      all &= found; \
    } \
    *any = some; \
    *every = all; \
  } \
  static void mark_##type(uint8_t *restrict state, int shift, const int64_t *restrict offsets, int64_t count, uint64_t keep, uint64_t mark) { \
    for (int64_t i = 0; i < count; ++i) { \
      type found; \
      memcpy(&found, state + (offsets[i] >> shift), sizeof found); \
      found = (type)((found & keep) | mark); \
      memcpy(state + (offsets[i] >> shift), &found, sizeof found); \
    } \
  } \
  static void touch_##type(uint8_t *restrict flags, int shift, int64_t start, const int64_t *restrict offsets, int64_t count) { \
    const type ones = (type)0x0101010101010101ull; \
    for (int64_t i = 0; i < count; ++i) memcpy(flags + ((offsets[i] - start) >> shift), &ones, sizeof ones); \
  }
STATES(uint8_t)
STATES(uint16_t)
STATES(uint32_t)
STATES(uint64_t)

#define BY_WIDTH(width, call, ...) \
  switch (width) { \
    case 1: call##_uint8_t(__VA_ARGS__); break; \
    case 2: call##_uint16_t(__VA_ARGS__); break; \
    case 4: call##_uint32_t(__VA_ARGS__); break; \
    default: call##_uint64_t(__VA_ARGS__); \
  }

// Conflicts with other threads: 1 if some granule with bits that matter was last touched by another one.
static int meets_others(const struct Access *a, const int64_t *restrict offsets, int64_t count, const int64_t *restrict lanes) {
  const uint8_t *restrict state = a->state, matters = a->matters;
  const int64_t *restrict threads = a->threads, *restrict writers = a->writers, *restrict readers = a->readers;
  const int shift = a->granule_shift, granules = a->granules;
  EACH_LANE(const int64_t own = threads[lane]; for (int64_t g = offsets[i] >> shift, end = g + granules; g < end; ++g) {
    const uint8_t bits = state[g] & matters;
    if ((bits & WRITTEN) && (writers[g] & 0xFFFFFFFF) != own) return 1;
    if ((bits & READ) && (a->many_readers[g] || (readers[g] & 0xFFFFFFFF) != own)) return 1;
  })
  return 0;
}

// Makes the lanes' writes the last ones of their granules; LOST if several lanes wrote one.
static int write_last(const struct Access *a, const int64_t *restrict offsets, int64_t count, const int64_t *restrict lanes, int64_t record) {
  const int64_t *restrict threads = a->threads;
  int64_t *restrict writers = a->writers;
  const int shift = a->granule_shift, granules = a->granules;
  int64_t lost = 0;
  if (granules == 1) {
    EACH_LANE(writers[offsets[i] >> shift] = threads[lane] | record;)
    EACH_LANE(lost |= writers[offsets[i] >> shift] ^ (threads[lane] | record);)
  } else {
    EACH_LANE(for (int g = 0; g < granules; ++g) writers[(offsets[i] >> shift) + g] = threads[lane] | record;)
    EACH_LANE(for (int g = 0; g < granules; ++g) lost |= writers[(offsets[i] >> shift) + g] ^ (threads[lane] | record);)
  }
  return lost ? LOST : DONE;
}

#define MOVE(type) \
  static void load_##type(const uint8_t *restrict data, const int64_t *restrict offsets, int64_t count, const int64_t *restrict lanes, \
                          type *restrict row) { \
    EACH_LANE(row[lane] = *(const type *)(data + offsets[i]);) \
  } \
  static void store_##type(uint8_t *restrict data, const int64_t *restrict offsets, int64_t count, const int64_t *restrict lanes, \
                           const char *restrict row, int stride) { \
    EACH_LANE(*(type *)(data + offsets[i]) = *(const type *)(row + lane * stride);) \
  }
MOVE(uint8_t)
MOVE(uint16_t)
MOVE(uint32_t)
MOVE(uint64_t)

// Loads into wider registers, extended by zeros or by the sign.
#define WIDEN(type, wide) \
  static void widen_##type##_##wide(const uint8_t *restrict data, const int64_t *restrict offsets, int64_t count, \
                                    const int64_t *restrict lanes, u##wide *restrict row) { \
    EACH_LANE(row[lane] = (u##wide)(wide)*(const type *)(data + offsets[i]);) \
  }
#define WIDEN_BOTH(type, wide) WIDEN(type, wide) WIDEN(u##type, wide)
WIDEN_BOTH(int8_t, int16_t)
WIDEN_BOTH(int8_t, int32_t)
WIDEN_BOTH(int8_t, int64_t)
WIDEN_BOTH(int16_t, int32_t)
WIDEN_BOTH(int16_t, int64_t)
WIDEN_BOTH(int32_t, int64_t)

static void widen(const struct Access *a, const uint8_t *data, const int64_t *offsets, int64_t count, const int64_t *lanes, void *row) {
#define CASE(type, wide) \
  if (a->element == (int)sizeof(type) && a->register_bytes == (int)sizeof(wide)) { \
    if (a->kind & IS_SIGNED) widen_##type##_##wide(data, offsets, count, lanes, row); \
    else widen_u##type##_##wide(data, offsets, count, lanes, row); \
  }
  CASE(int8_t, int16_t)
  CASE(int8_t, int32_t)
  CASE(int8_t, int64_t)
  CASE(int16_t, int32_t)
  CASE(int16_t, int64_t)
  CASE(int32_t, int64_t)
}

// Lanes whose bytes follow each other make a stretch. Work lane by lane then becomes one pass over bytes that are side by side.
enum { MOST_STRETCHES = 4096, FEWEST_LANES = 8 };

// The first lanes of the stretches, with `count` behind them; their number, or 0 if stretches are too short to be worth it.
static int find_stretches(const int64_t *restrict offsets, int64_t count, const int64_t *restrict lanes, int64_t width, int32_t *restrict starts) {
  int found = 1;
  starts[0] = 0;
  for (int64_t i = 1; i < count; ++i)
    if (offsets[i] - offsets[i - 1] != width || (lanes && lanes[i] - lanes[i - 1] != 1)) {
      if (found == MOST_STRETCHES || found * FEWEST_LANES > i + 8 * FEWEST_LANES) return 0;
      starts[found++] = (int32_t)i;
    }
  starts[found] = (int32_t)count;
  return found * FEWEST_LANES <= count ? found : 0;
}

// Conflicts in one stretch, as `meets_others` finds them.
static int64_t stretch_meets_others(const struct Access *a, int64_t granule, int64_t count, const int64_t *restrict threads) {
  const uint8_t *restrict state = a->state + granule, *restrict many = a->many_readers + granule, matters = a->matters;
  const int64_t *restrict writers = a->writers + granule, *restrict readers = a->readers + granule;
  const int granules = a->granules;
  int64_t met = 0;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t g = i * granules, end = g + granules; g < end; ++g) {
      const uint8_t bits = state[g] & matters;
      met |= bits & WRITTEN ? writers[g] ^ threads[i] : 0;
      met |= bits & READ ? (readers[g] ^ threads[i]) | many[g] : 0;
    }
  return met & 0xFFFFFFFF;
}

// `access_memory` behind its first checks, for stretches; only for accesses of whole granules.
static int access_stretches(const struct Access *a, const int64_t *restrict offsets, const int64_t *restrict lanes, int64_t record,
                            const int32_t *restrict starts, int stretches) {
  const int64_t width = (int64_t)a->element * a->elements;
  const int shift = a->granule_shift, granules = a->granules;
#define EACH_STRETCH(body) \
  for (int n = 0; n < stretches; ++n) { \
    const int64_t from = starts[n], size = starts[n + 1] - from, offset = offsets[from], granule = offset >> shift, all = size * granules; \
    const int64_t lane = lanes ? lanes[from] : from; \
    (void)lane; (void)granule; (void)all; (void)offset; \
    body \
  }
  uint8_t any = 0, every = 0xFF;
  if (a->state) {
    EACH_STRETCH(const uint8_t *restrict state = a->state + granule; for (int64_t i = 0; i < all; ++i) { any |= state[i]; every &= state[i]; })
    const uint8_t bits = any & a->matters;
    if (bits) {
      if (!(a->kind & MAY_BE_OWN) || (bits & ~(WRITTEN | READ))) return ORDINARY;
      if ((bits & READ) && (a->kind & HAS_PENDING)) return SETTLE;
      EACH_STRETCH(if (stretch_meets_others(a, granule, size, a->threads + lane)) return ORDINARY;)
    }
  }
  if (a->touched) {
    const int64_t unit = a->touched_shift;
    EACH_STRETCH(const int64_t first = (offset - (int64_t)a->touched_start) >> unit;
                 const int64_t last = (offset + size * width - 1 - (int64_t)a->touched_start) >> unit;
                 memset(a->touched + first, 1, (size_t)(last - first + 1));)
  }
  int answer = DONE;
  if (a->state && (a->kind & IS_STORE)) {
    const uint8_t keep = a->keep, mark = a->mark;
    EACH_STRETCH(uint8_t *restrict state = a->state + granule; for (int64_t i = 0; i < all; ++i) state[i] = (state[i] & keep) | mark;)
    if (!(a->kind & IS_PRIVATE)) {
      int64_t lost = 0;
      EACH_STRETCH(int64_t *restrict writers = a->writers + granule; const int64_t *restrict threads = a->threads + lane;
                   if (granules == 1) for (int64_t i = 0; i < size; ++i) writers[i] = threads[i] | record;
                   else for (int64_t i = 0; i < size; ++i) for (int g = 0; g < granules; ++g) writers[i * granules + g] = threads[i] | record;)
      EACH_STRETCH(const int64_t *restrict writers = a->writers + granule; const int64_t *restrict threads = a->threads + lane;
                   if (granules == 1) for (int64_t i = 0; i < size; ++i) lost |= writers[i] ^ (threads[i] | record);
                   else for (int64_t i = 0; i < size; ++i) for (int g = 0; g < granules; ++g) lost |= writers[i * granules + g] ^ (threads[i] | record);)
      if (lost) answer = LOST;
    }
  } else if (any & a->watched) {
    const uint8_t mark = a->mark;
    if ((every & mark) != mark) EACH_STRETCH(uint8_t *restrict state = a->state + granule; for (int64_t i = 0; i < all; ++i) state[i] |= mark;)
    answer = REMEMBER;
  }
#undef EACH_STRETCH
  return answer;
}

// An access of lanes (null: all); `offsets` gets their byte offsets. REMEMBER: the caller notes the read. LOST: several lanes have written one
// granule. SETTLE: reads that the caller still keeps have to be noted first; UNSEEN: a page has to be looked at first; nothing has happened.
int access_memory(const struct Access *a, const void *addresses, int wide, int64_t count, const int64_t *lanes, int64_t record,
                  int64_t *offsets) {
  if (wide ? place_uint64_t(a, addresses, count, lanes, offsets) : place_uint32_t(a, addresses, count, lanes, offsets)) return ORDINARY;
  if (a->looked) {
    const uint8_t *restrict looked = a->looked;
    const int shift = a->page_shift;
    uint8_t seen = 1;
    for (int64_t i = 0; i < count; ++i) seen &= looked[offsets[i] >> shift];
    if (!seen) return UNSEEN;
  }
  const uint64_t spread = 0x0101010101010101ull;
  const int shift = a->granule_shift, granules = a->granules;
  uint64_t any = 0, every = 0;
  int32_t starts[MOST_STRETCHES + 1];
  const int64_t width = (int64_t)a->element * a->elements;
  const int is_whole = !a->state || width == (int64_t)granules << shift;
  const int stretches = is_whole && count > FEWEST_LANES ? find_stretches(offsets, count, lanes, width, starts) : 0;
  int answer = DONE;
  if (stretches) {
    answer = access_stretches(a, offsets, lanes, record, starts, stretches);
    if (answer >= SETTLE) return answer;
    if (a->elements == 1 && a->element == a->register_bytes && a->rows[0]) {
      for (int n = 0; n < stretches; ++n) {
        const int64_t from = starts[n], bytes = (starts[n + 1] - from) * width;
        char *row = (char *)a->rows[0] + (lanes ? lanes[from] : from) * width;
        uint8_t *data = a->data + offsets[from];
        if (a->kind & IS_STORE) memcpy(data, row, (size_t)bytes);
        else memcpy(row, data, (size_t)bytes);
      }
      return answer;
    }
  }
  if (a->state && !stretches) {
    BY_WIDTH(granules, states, a->state, shift, offsets, count, &any, &every)
    uint8_t bits = 0;
    for (int g = 0; g < granules; ++g) bits |= (uint8_t)(any >> 8 * g) & a->matters;
    if (bits) {
      if (!(a->kind & MAY_BE_OWN) || (bits & ~(WRITTEN | READ))) return ORDINARY;
      if ((bits & READ) && (a->kind & HAS_PENDING)) return SETTLE;
      if (meets_others(a, offsets, count, lanes)) return ORDINARY;
    }
  }
  if (a->touched && !stretches)
    for (int32_t unit = 0; unit < a->touched_units; unit += 8) {
      const int32_t units = a->touched_units < 8 ? a->touched_units : 8;
      BY_WIDTH(units, touch, a->touched + unit, a->touched_shift, (int64_t)a->touched_start, offsets, count)
    }
  if (stretches) {
    // Only the data are left to move.
  } else if (a->state && (a->kind & IS_STORE)) {
    BY_WIDTH(granules, mark, a->state, shift, offsets, count, a->keep * spread, a->mark * spread)
    if (!(a->kind & IS_PRIVATE)) answer = write_last(a, offsets, count, lanes, record);
  } else if (any & (a->watched * spread)) {
    const uint64_t mark = (a->mark * spread) & (~0ull >> (64 - 8 * granules));
    if ((every & mark) != mark) BY_WIDTH(granules, mark, a->state, shift, offsets, count, ~0ull, mark)
    answer = REMEMBER;
  }
  for (int e = 0; e < a->elements; ++e) {
    uint8_t *data = a->data + e * a->element;
    if (!a->rows[e]) continue;
    if (a->kind & IS_STORE) BY_WIDTH(a->element, store, data, offsets, count, lanes, a->rows[e], a->register_bytes)
    else if (a->register_bytes != a->element) widen(a, data, offsets, count, lanes, a->rows[e]);
    else BY_WIDTH(a->element, load, data, offsets, count, lanes, a->rows[e])
  }
  return answer;
}

// Notes accesses to `granules` granules a lane, from (offset >> shift) * unit on: the latest of the first thread of each in `first`; returns
// the number of the others, which are flagged in `shared` and put at the end of `noted` and `accesses`. From the last lane to the first: of
// several new ones the last one counts.
int64_t note_accesses(int64_t *restrict first, uint8_t *restrict shared, const int64_t *restrict offsets, int shift, int unit, int granules,
                      int64_t count, const int64_t *restrict lanes, const int64_t *restrict threads, int64_t record,
                      int64_t *restrict noted, int64_t *restrict accesses) {
  int64_t room = count * granules;
  for (int64_t i = count - 1; i >= 0; --i) {
    // A stretch of granules side by side that nobody else has met is one pass.
    int64_t from = i;
    while (from > 0 && ((offsets[from - 1] >> shift) * unit + granules) == (offsets[from] >> shift) * unit && (!lanes || lanes[from] - lanes[from - 1] == 1)) --from;
    if (i - from >= FEWEST_LANES) {
      int64_t *restrict known = first + (offsets[from] >> shift) * unit, others = 0;
      const int64_t *restrict own = threads + (lanes ? lanes[from] : from), size = i - from + 1;
      if (granules == 1) {
        for (int64_t k = 0; k < size; ++k) others |= known[k] ? known[k] ^ own[k] : 0;
      } else {
        for (int64_t k = 0; k < size * granules; ++k) others |= known[k] ? known[k] ^ own[k / granules] : 0;
      }
      if (!(others & 0xFFFFFFFF)) {
        if (granules == 1) for (int64_t k = 0; k < size; ++k) known[k] = own[k] | record;
        else for (int64_t k = 0; k < size * granules; ++k) known[k] = own[k / granules] | record;
        i = from;
        continue;
      }
    }
    const int64_t access = threads[lanes ? lanes[i] : i] | record;
    for (int g = granules - 1; g >= 0; --g) {
      const int64_t granule = (offsets[i] >> shift) * unit + g, known = first[granule];
      if (!known || !((known ^ access) & 0xFFFFFFFF)) {
        first[granule] = access;
      } else {
        shared[granule] = 1;
        noted[--room] = granule;
        accesses[room] = access;
      }
    }
  }
  return count * granules - room;
}

// The lowest key and its lanes, which `lanes` gets; `until` gets the lowest of the other keys.
int64_t lowest_key(const int32_t *restrict key, int64_t count, int32_t blocked, int64_t *restrict lanes, int32_t *restrict lowest,
                   int32_t *restrict until) {
  int32_t least = blocked, next = blocked;
  for (int64_t i = 0; i < count; ++i) least = key[i] < least ? key[i] : least;
  *lowest = least;
  int64_t found = 0;
  if (least < blocked) {
    for (int64_t i = 0; i < count; ++i) next = key[i] != least && key[i] < next ? key[i] : next;
    for (int64_t i = 0; i < count; ++i) {
      lanes[found] = i;
      found += key[i] == least;
    }
  }
  *until = next;
  return found;
}

// The lanes (null: all) whose predicate holds. If that is only a part of them, each lane's key gets its next block.
int64_t part_lanes(const uint8_t *restrict row, int64_t count, const int64_t *restrict lanes, int32_t *restrict key, int32_t when_set,
                   int32_t when_clear) {
  int64_t held = 0;
  EACH_LANE((void)i; held += row[lane];)
  if (held && held < count) EACH_LANE((void)i; key[lane] = row[lane] ? when_set : when_clear;)
  return held;
}
