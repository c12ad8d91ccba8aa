// Arithmetic of residues modulo 2^31 - 1 in one pass each, for gemmgen/emulator/residue_loops.py.
#include <stdint.h>

#define MODULUS 0x7FFFFFFFu
#define GOLDEN 0x9E3779B97F4A7C15ull

// Numbers below 2^64 to a representative below 2^31 + 5.
static inline uint64_t folded(uint64_t value) {
  value = (value & MODULUS) + (value >> 31);
  return (value & MODULUS) + (value >> 31);
}

static inline uint64_t canonical(uint64_t value) {
  value = folded(value);
  return value >= MODULUS ? value - MODULUS : value;
}

// A pattern that does not look like a code of 16 bits.
static inline uint32_t without_code(uint32_t value) { return value && !(value & 0xFFFF) ? value + MODULUS : value; }

// The codes of 16 bits of a run: their residues, and flags of those that nothing has read yet. Without codes `residues` is null.
struct Codes {
  const uint32_t *residues;
  uint8_t *is_free;
  int64_t taken;
};

static inline uint32_t meant(struct Codes *codes, uint32_t word) {
  if (!codes->residues || (word & 0xFFFF)) return word;
  const uint32_t code = word >> 16;
  codes->taken += codes->is_free[code];
  codes->is_free[code] = 0;
  return codes->residues[code];
}

static inline uint32_t written(const struct Codes *codes, uint64_t value) {
  return codes->residues ? without_code((uint32_t)value) : (uint32_t)value;
}

void read_words(struct Codes *codes, const uint32_t *restrict words, int64_t count, uint32_t *restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = meant(codes, words[i]);
}

void hide_codes(const uint32_t *restrict words, int64_t count, uint32_t *restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = without_code(words[i]);
}

enum { ADD, SUBTRACT, MULTIPLY, MULTIPLY_ADD, NEGATE };

// Sums and products of up to three rows of registers, for all lanes or those that are listed; a step of 0 repeats a constant.
void ring(struct Codes *codes, int32_t operation, const uint32_t *a, const uint32_t *b, const uint32_t *c, int32_t step_a, int32_t step_b,
          int32_t step_c, uint32_t *out, int64_t count, const int64_t *restrict lanes) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t lane = lanes ? lanes[i] : i;
    const uint64_t x = meant(codes, a[lane * step_a]), y = b ? meant(codes, b[lane * step_b]) : 0;
    const uint64_t z = c ? meant(codes, c[lane * step_c]) : 0;
    uint64_t value;
    switch (operation) {
      case ADD: value = folded(x + y); break;
      case SUBTRACT: value = canonical(x + (MODULUS - canonical(y))); break;
      case MULTIPLY: value = folded(x * y); break;
      case MULTIPLY_ADD: value = folded(x * y + z); break;
      default: value = canonical(MODULUS - canonical(x));
    }
    out[lane] = written(codes, value);
  }
}

// True if a word may be a code.
static int has_codes(const uint32_t *restrict words, int64_t count) {
  int found = 0;
  for (int64_t i = 0; i < count; ++i) found |= !(words[i] & 0xFFFF);
  return found;
}

enum { LANES_AT_ONCE = 128 };

// The words of a row of registers from `first` on, of all lanes or those that are listed, as residues; a row below 0 is a constant.
static void read_row(struct Codes *codes, const uint32_t *restrict registers, int64_t length, int32_t row, const uint32_t *restrict constants,
                     int64_t first, int64_t width, const int64_t *restrict lanes, uint32_t *restrict out) {
  if (row < 0) {
    for (int64_t i = 0; i < width; ++i) out[i] = constants[-1 - row];
    return;
  }
  const uint32_t *source = registers + row * length;
  for (int64_t i = 0; i < width; ++i) out[i] = source[lanes ? lanes[first + i] : first + i];
  if (codes->residues && has_codes(out, width))
    for (int64_t i = 0; i < width; ++i) out[i] = meant(codes, out[i]);
}

// Independent multiply-adds over rows of registers. Each has the row of its result, the places of its factors among the rows of `factors`,
// and the row of its addend. `scratch` has room for LANES_AT_ONCE words of each factor.
void multiply_add_rows(struct Codes *codes, uint32_t *registers, int64_t length, int64_t count, const int32_t *restrict each, int64_t factors,
                       const int32_t *restrict factor_rows, const uint32_t *restrict constants, uint32_t *restrict scratch, int64_t lane_count,
                       const int64_t *restrict lanes) {
  for (int64_t first = 0; first < lane_count; first += LANES_AT_ONCE) {
    const int64_t width = lane_count - first < LANES_AT_ONCE ? lane_count - first : LANES_AT_ONCE;
    for (int64_t i = 0; i < factors; ++i)
      read_row(codes, registers, length, factor_rows[i], constants, first, width, lanes, scratch + i * LANES_AT_ONCE);
    for (int64_t i = 0; i < count; ++i, each += 4) {
      const uint32_t *a = scratch + each[1] * LANES_AT_ONCE, *b = scratch + each[2] * LANES_AT_ONCE;
      uint32_t sums[LANES_AT_ONCE];
      read_row(codes, registers, length, each[3], constants, first, width, lanes, sums);
      for (int64_t lane = 0; lane < width; ++lane) sums[lane] = (uint32_t)folded((uint64_t)a[lane] * b[lane] + sums[lane]);
      if (codes->residues)
        for (int64_t lane = 0; lane < width; ++lane) sums[lane] = without_code(sums[lane]);
      uint32_t *target = registers + each[0] * length;
      for (int64_t lane = 0; lane < width; ++lane) target[lanes ? lanes[first + lane] : first + lane] = sums[lane];
    }
    each -= 4 * count;
  }
}

enum { COLUMNS_AT_ONCE = 8, DEPTH_AT_ONCE = 64 };

// Sums of products of stacks of matrices of residues below 2^31: A [rows, depth], B [columns, depth], results [rows, columns].
void matrix_products(const uint32_t *restrict a, const uint32_t *restrict b, uint64_t *restrict out, int64_t stacks, int64_t rows,
                     int64_t columns, int64_t depth) {
  for (int64_t stack = 0; stack < stacks; ++stack, a += rows * depth, b += columns * depth, out += rows * columns)
    for (int64_t first = 0; first < columns; first += COLUMNS_AT_ONCE)
      for (int64_t begin = 0; begin < depth || !begin; begin += DEPTH_AT_ONCE) {
        const int64_t width = columns - first < COLUMNS_AT_ONCE ? columns - first : COLUMNS_AT_ONCE;
        const int64_t steps = depth - begin < DEPTH_AT_ONCE ? depth - begin : DEPTH_AT_ONCE;
        uint32_t turned[DEPTH_AT_ONCE][COLUMNS_AT_ONCE] = {{0}};
        for (int64_t column = 0; column < width; ++column)
          for (int64_t k = 0; k < steps; ++k) turned[k][column] = b[(first + column) * depth + begin + k];
        for (int64_t row = 0; row < rows; ++row) {
          const uint32_t *x = a + row * depth + begin;
          uint64_t low[COLUMNS_AT_ONCE] = {0}, high[COLUMNS_AT_ONCE] = {0};
          int64_t k = 0;
          for (; k + 4 <= steps; k += 4)
            for (int column = 0; column < COLUMNS_AT_ONCE; ++column) {
              // Four products below 2^62.
              uint64_t sum = (uint64_t)x[k] * turned[k][column] + (uint64_t)x[k + 1] * turned[k + 1][column];
              sum += (uint64_t)x[k + 2] * turned[k + 2][column] + (uint64_t)x[k + 3] * turned[k + 3][column];
              low[column] += sum & MODULUS;
              high[column] += sum >> 31;
            }
          for (; k < steps; ++k)
            for (int column = 0; column < COLUMNS_AT_ONCE; ++column) low[column] += folded((uint64_t)x[k] * turned[k][column]);
          uint64_t *result = out + row * columns + first;
          for (int64_t column = 0; column < width; ++column)
            result[column] = folded((begin ? result[column] : 0) + low[column] + folded(high[column]));
        }
      }
}

// The residues of the elements of words (residue_words.Words): `table` has so many for each number of a word.
void read_elements(const uint32_t *restrict words, int64_t count, uint32_t inverse, uint32_t last, const uint32_t *restrict table,
                   int32_t elements, uint32_t *restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t number = words[i] * inverse;
    const uint32_t *own = table + (uint64_t)(number < last ? number : last) * elements;
    for (int32_t k = 0; k < elements; ++k) out[i * elements + k] = own[k];
  }
}

// A table of residues of elements: by the number of a word that holds several (residue_words.Words), or by the bits of each element.
struct Elements {
  const uint32_t *table;
  int32_t in_word;  // elements of a word
  int32_t bits;     // upper bits of an element that are an index; 0 where words have numbers
  uint32_t inverse, last;
};

static inline void read_word(const struct Elements *of, uint32_t word, uint32_t *restrict out) {
  if (!of->bits) {
    const uint32_t number = word * of->inverse;
    const uint32_t *own = of->table + (uint64_t)(number < of->last ? number : of->last) * of->in_word;
    for (int32_t k = 0; k < of->in_word; ++k) out[k] = own[k];
    return;
  }
  const int32_t width = 32 / of->in_word;
  for (int32_t k = 0; k < of->in_word; ++k) out[k] = of->table[word << (32 - width * (k + 1)) >> (32 - of->bits)];
}

enum { WARP = 32, TILE = 8, QUAD = 4, MOST_DEPTH = 64 };

// mma.sync of whole warps (instructions/multiply.py describes the fragments): D = A B + C. `registers`: those of A, B, C and D, of which
// some of D may be null. `firsts`: the first lane of each warp; null for all.
void multiply_fragments(struct Codes *codes, uint32_t *const *registers, int32_t tiles, int32_t along_k, const struct Elements *of,
                        int32_t reduced, int64_t warps, const int64_t *restrict firsts) {
  uint32_t *const *a = registers, *const *b = a + tiles * along_k, *const *c = b + along_k, *const *d = c + 2 * tiles;
  const int32_t depth = along_k * QUAD * of->in_word;
  for (int64_t warp = 0; warp < warps; ++warp) {
    const int64_t lane = firsts ? firsts[warp] : WARP * warp;
    uint32_t turned[MOST_DEPTH][TILE], row_of_a[MOST_DEPTH], of_word[TILE];
    uint32_t results[2 * TILE * TILE];
    for (int32_t k = 0; k < along_k * QUAD; ++k)
      for (int32_t column = 0; column < TILE; ++column) {
        read_word(of, b[k / QUAD][lane + QUAD * column + k % QUAD], of_word);
        for (int32_t part = 0; part < of->in_word; ++part) turned[k * of->in_word + part][column] = of_word[part];
      }
    for (int32_t row = 0; row < TILE * tiles; ++row) {
      const int64_t quad = lane + QUAD * (row % TILE);
      for (int32_t k = 0; k < along_k * QUAD; ++k)
        read_word(of, a[k / QUAD * tiles + row / TILE][quad + k % QUAD], row_of_a + k * of->in_word);
      uint64_t low[TILE] = {0}, high[TILE] = {0};
      for (int32_t k = 0; k < depth; k += 4)
        for (int32_t column = 0; column < TILE; ++column) {
          // Four products below 2^62.
          uint64_t sum = (uint64_t)row_of_a[k] * turned[k][column] + (uint64_t)row_of_a[k + 1] * turned[k + 1][column];
          sum += (uint64_t)row_of_a[k + 2] * turned[k + 2][column] + (uint64_t)row_of_a[k + 3] * turned[k + 3][column];
          low[column] += sum & MODULUS;
          high[column] += sum >> 31;
        }
      for (int32_t column = 0; column < TILE; ++column) {
        const uint32_t before = c[row / TILE * 2 + column % 2][quad + column / 2];
        const uint64_t sum = folded(low[column] + folded(high[column])) + meant(codes, before);
        results[row * TILE + column] = written(codes, reduced ? canonical(sum) : folded(sum));
      }
    }
    for (int32_t row = 0; row < TILE * tiles; ++row)
      for (int32_t column = 0; column < TILE; ++column) {
        uint32_t *target = d[row / TILE * 2 + column % 2];
        if (target) target[lane + QUAD * (row % TILE) + column / 2] = results[row * TILE + column];
      }
  }
}

// Adds sums of products, or takes them away, and writes the patterns of the results.
void add_products(struct Codes *codes, const uint64_t *restrict products, const uint32_t *restrict addends, int32_t negated, int32_t reduced,
                  int64_t count, uint32_t *restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t product = negated ? 2 * (uint64_t)MODULUS - products[i] : products[i];
    const uint64_t sum = product + meant(codes, addends[i]);
    out[i] = written(codes, reduced ? canonical(sum) : folded(sum));
  }
}

void reduce_words(const uint32_t *restrict values, int64_t count, uint64_t *restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = canonical(values[i]);
}

void reduce_long(const uint64_t *restrict values, int64_t count, uint64_t *restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = canonical(values[i]);
}

// Codes of numbers by open addressing (CodeTable); 0 for those without one. The number of numbers without one, zero left out.
#define FIND(name, type) \
  int64_t name(const type *restrict wanted, int64_t count, const type *restrict numbers, const uint16_t *restrict slots, int64_t mask, \
               uint16_t *restrict found) { \
    int64_t missing = 0; \
    for (int64_t i = 0; i < count; ++i) { \
      int64_t slot = (int64_t)(((uint64_t)wanted[i] * GOLDEN) >> 40) & mask; \
      while (slots[slot] && numbers[slots[slot]] != wanted[i]) slot = (slot + 1) & mask; \
      found[i] = slots[slot]; \
      missing += !found[i] && wanted[i]; \
    } \
    return missing; \
  }
FIND(find_short, uint32_t)
FIND(find_long, uint64_t)

// The codes of residues, from `codes` on for those that have none yet. The number of codes that are in use then; -1 if there are too few.
int64_t narrow(const uint32_t *restrict values, int64_t count, uint32_t *restrict numbers, uint16_t *restrict slots, int64_t mask,
               const uint16_t *restrict codes, int64_t used, int64_t limit, uint8_t *restrict is_free, uint32_t *restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    int64_t slot = (int64_t)(((uint64_t)values[i] * GOLDEN) >> 40) & mask;
    while (slots[slot] && numbers[slots[slot]] != values[i]) slot = (slot + 1) & mask;
    if (!slots[slot] && values[i]) {
      if (used == limit) return -1;
      slots[slot] = codes[used++];
      numbers[slots[slot]] = values[i];
      is_free[slots[slot]] = 0;
    }
    out[i] = slots[slot];
  }
  return used;
}

static inline uint64_t permuted(uint64_t value) {
  value &= MODULUS;
  value = ((value ^ (value >> 15)) * 0x2C1B3C6Dull) & MODULUS;
  value = ((value ^ (value >> 14)) * 0x297A2D39ull) & MODULUS;
  return value ^ (value >> 16);
}

// A function that is known by its name and arguments alone (residues.opaque).
void opaque(uint64_t name, int32_t commutes, int32_t arguments, const uint32_t *const *values, const int32_t *restrict steps, int64_t count,
            uint32_t *restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t hash = commutes ? 0 : name;
    for (int part = 0; part < arguments; ++part) {
      const uint64_t value = canonical(values[part][i * steps[part]]);
      hash = commutes ? hash + permuted(value + name) : permuted(value + hash * 0x2C1B3C6Dull);
    }
    out[i] = (uint32_t)(commutes ? permuted(hash) : hash);
  }
}

// Residues in the order that comparisons use: integers around zero, or 1 and -1 for infinities and 0 for all others.
static inline int32_t ordered(uint32_t word, const uint32_t *infinities) {
  const uint32_t value = (uint32_t)canonical(word);
  if (infinities) return (value == infinities[0]) - (value == infinities[1]);
  return value > MODULUS / 2 ? (int32_t)value - (int32_t)MODULUS : (int32_t)value;
}

enum { EQUAL, NOT_EQUAL, LESS, LESS_OR_EQUAL, ALWAYS, NEVER };

// Comparisons of two rows of registers, for all lanes or those that are listed; a step of 0 repeats a constant. `infinities`: null, or the
// residues of both.
void compare(struct Codes *codes, int32_t relation, const uint32_t *a, const uint32_t *b, int32_t step_a, int32_t step_b,
             const uint32_t *infinities, uint8_t *out, int64_t count, const int64_t *restrict lanes) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t lane = lanes ? lanes[i] : i;
    if (relation >= ALWAYS) {
      out[lane] = relation == ALWAYS;
      continue;
    }
    const int32_t x = ordered(meant(codes, a[lane * step_a]), infinities), y = ordered(meant(codes, b[lane * step_b]), infinities);
    out[lane] = relation == EQUAL ? x == y : relation == NOT_EQUAL ? x != y : relation == LESS ? x < y : x <= y;
  }
}

// One of two rows' values, as a row of answers says, for all lanes or those that are listed.
void choose(const uint8_t *answers, const uint32_t *a, const uint32_t *b, int32_t step_a, int32_t step_b, uint32_t *out, int64_t count,
            const int64_t *restrict lanes) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t lane = lanes ? lanes[i] : i;
    out[lane] = answers[lane] ? a[lane * step_a] : b[lane * step_b];
  }
}

static inline uint64_t without_neutral(uint32_t word, uint32_t neutral) { return word == neutral ? 0 : canonical(word); }

// Sums in place of the better of two values (over_field.joined), for all lanes or those that are listed: `words` are both values and, unless these are null, both places. A side that
// is `fresh` is an element, whose hash with its place counts. 1 if a value and a place are not those of one sum.
int join(uint32_t neutral, uint64_t element, int32_t gives_place, const int32_t *fresh, const uint32_t *const *words, const int32_t *steps,
         uint32_t *out, int64_t count, const int64_t *restrict lanes) {
  int differ = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t lane = lanes ? lanes[i] : i;
    uint64_t total = 0;
    for (int side = 0; side < 2; ++side) {
      const uint32_t value = words[side][lane * steps[side]];
      const uint64_t own = without_neutral(value, neutral);
      if (words[2]) {
        const uint32_t place = words[2 + side][lane * steps[2 + side]];
        if (fresh[side]) {
          total += permuted(canonical(place) + permuted(canonical(value) + element * 0x2C1B3C6Dull) * 0x2C1B3C6Dull);
          continue;
        }
        differ |= (value == neutral) != (place == MODULUS) || own != canonical(place);
      }
      total += own;
    }
    const uint32_t summed = (uint32_t)canonical(total);
    if (gives_place) out[lane] = summed ? summed : MODULUS;
    else out[lane] = !summed ? neutral : summed == neutral ? summed + MODULUS : summed;
  }
  return differ;
}
