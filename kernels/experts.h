// Shared by the kernels of this folder: products of quantised weight rows with input rows, one simdgroup each.
//
// A weight row of IN columns is packed little-endian into u32 words, BITS (2, 4 or 8) bits a column. Each lane takes 16
// columns at a time, lane l of step s those from (s * 32 + l) * 16 on. What a code stands for:
//   signed:  (code - offset) * scale         offset 8 for 4 bits, 128 for 8 bits with the sign bit flipped
//   affine:  code * scale + bias
// Codes become floats without a conversion: a code that lies at bit p of a word, under the exponent of 2^(23 - p), is the
// float 2^(23 - p) + code; from that 2^(23 - p) + offset is subtracted exactly.
// Every rounding is written out: metal::fma where a product and a sum round once, nothing for a compiler to contract.

constexpr constant int COLUMNS = 16;

template <typename X>
struct IsBfloat {
  static constexpr constant bool value = false;
};
template <>
struct IsBfloat<bfloat16_t> {
  static constexpr constant bool value = true;
};

// 16 columns of an input row, as floats.
template <typename X, int BYTES>
struct Input;

template <typename X>
struct Input<X, 4> {
  static METAL_FUNC void load(const device X* x, thread float* v) {
    const device uint4* words = (const device uint4*)x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint4 w = words[i];
      v[4 * i] = as_type<float>(w.x);
      v[4 * i + 1] = as_type<float>(w.y);
      v[4 * i + 2] = as_type<float>(w.z);
      v[4 * i + 3] = as_type<float>(w.w);
    }
  }
};

template <typename X>
struct Input<X, 2> {
  static METAL_FUNC float low(uint w) {
    return IsBfloat<X>::value ? as_type<float>(w << 16) : float(as_type<X>(ushort(w & 0xffffu)));
  }
  static METAL_FUNC float high(uint w) {
    return IsBfloat<X>::value ? as_type<float>(w & 0xffff0000u) : float(as_type<X>(ushort(w >> 16)));
  }

  static METAL_FUNC void load(const device X* x, thread float* v) {
    const device uint4* words = (const device uint4*)x;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint4 w = words[i];
      v[8 * i] = low(w.x);
      v[8 * i + 1] = high(w.x);
      v[8 * i + 2] = low(w.y);
      v[8 * i + 3] = high(w.y);
      v[8 * i + 4] = low(w.z);
      v[8 * i + 5] = high(w.z);
      v[8 * i + 6] = low(w.w);
      v[8 * i + 7] = high(w.w);
    }
  }
};

// The masked word under other bits: one operation where the target has it.
#ifndef MASK_OR
#define MASK_OR(word, mask, bits) (((word) & (mask)) | (bits))
#endif

// The value of the code of `bits` bits at bit `shift` of `word`; bits + shift is at most 23.
METAL_FUNC float code_value(uint word, int bits, int shift, float offset) {
  const uint mask = ((1u << bits) - 1u) << shift;
  const uint exponent = uint(127 + 23 - shift) << 23;
  return as_type<float>(MASK_OR(word, mask, exponent)) - (float(1u << (23 - shift)) + offset);
}

template <int BITS>
struct Codes;

// Sixteen codes a word: eight from its low half, eight from its high half. Affine only.
template <>
struct Codes<2> {
  static METAL_FUNC void load(const device uint* weight, thread uint* packed) { packed[0] = *weight; }

  static METAL_FUNC float value(const thread uint* packed, int i, bool) {
    const uint word = i < 8 ? packed[0] : packed[0] >> 16;
    return code_value(word, 2, 2 * (i % 8), 0.0f);
  }
};

// Eight codes a word: five from its low 20 bits, three from its high 12.
template <>
struct Codes<4> {
  static METAL_FUNC void load(const device uint* weight, thread uint* packed) {
    const uint2 w = *(const device uint2*)weight;
    packed[0] = w.x;
    packed[1] = w.y;
  }

  static METAL_FUNC float value(const thread uint* packed, int i, bool is_signed) {
    const int place = i % 8;
    const uint word = place < 5 ? packed[i / 8] : packed[i / 8] >> 20;
    return code_value(word, 4, 4 * (place < 5 ? place : place - 5), is_signed ? 8.0f : 0.0f);
  }
};

// Four codes a word: two from its low half, two from its high half.
template <>
struct Codes<8> {
  static METAL_FUNC void load(const device uint* weight, thread uint* packed) {
    const uint4 w = *(const device uint4*)weight;
    packed[0] = w.x;
    packed[1] = w.y;
    packed[2] = w.z;
    packed[3] = w.w;
  }

  static METAL_FUNC float value(const thread uint* packed, int i, bool is_signed) {
    const uint flipped = is_signed ? packed[i / 4] ^ 0x80808080u : packed[i / 4];
    const uint word = i % 4 < 2 ? flipped : flipped >> 16;
    return code_value(word, 8, 8 * (i % 2), is_signed ? 128.0f : 0.0f);
  }
};

// Row `r` of a block of ROWS rows from `first` on; the last row instead of one beyond the end. Where the blocks fit there is
// no such row, and the rows of a block then lie at constant distances.
template <int COUNT, int ROWS>
METAL_FUNC uint clamped_row(uint first, int r) {
  return COUNT % ROWS == 0 ? first + uint(r) : min(first + uint(r), uint(COUNT - 1));
}

// Where the parts of one weight row begin. `biases` is not read when the format is signed.
template <typename S>
struct Row {
  const device uint* weight;
  const device S* scales;
  const device S* biases;
};

// Finds the row `row` of a projection whose weights, scales and biases begin at these words of `slot`.
template <typename S, int IN, int BITS, int GROUP>
METAL_FUNC void find_row(thread Row<S>& found, const device uint* slot, uint weight, uint scales, uint biases, uint row) {
  const uint groups = (IN + GROUP - 1) / GROUP;
  found.weight = slot + weight + row * uint(IN * BITS / 32);
  found.scales = (const device S*)(slot + scales) + row * groups;
  found.biases = (const device S*)(slot + biases) + row * groups;
}

// An input row.
template <typename X>
struct InputRow {
  const device X* x;
};

// Loads the packed codes of the lane's 16 columns from `column` on.
template <typename S, int BITS, int ROWS>
METAL_FUNC void load_codes(const thread Row<S>* rows, uint column, thread uint (&packed)[ROWS][BITS / 2]) {
#pragma unroll
  for (int r = 0; r < ROWS; r++) { Codes<BITS>::load(rows[r].weight + column * BITS / 32, packed[r]); }
}

// The lane's 16 columns of the input rows from `column` on and, where SUMS, their sums from left to right.
template <typename X, bool SUMS, int PAIRS>
METAL_FUNC void load_inputs(const thread InputRow<X>* inputs, uint column, thread float (&v)[PAIRS][COLUMNS],
                            thread float (&input_sum)[PAIRS]) {
#pragma unroll
  for (int p = 0; p < PAIRS; p++) {
    Input<X, sizeof(X)>::load(inputs[p].x + column, v[p]);
    input_sum[p] = 0.0f;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      if (SUMS) { input_sum[p] += v[p][i]; }
    }
  }
}

// Adds the products of these columns to the sums.
template <typename S, int IN, int BITS, int GROUP, bool SIGNED, int ROWS, int PAIRS>
METAL_FUNC void add_products(const thread Row<S>* rows, const thread float (&v)[PAIRS][COLUMNS],
                             const thread float (&input_sum)[PAIRS], uint column,
                             const thread uint (&packed)[ROWS][BITS / 2], thread float (&sums)[ROWS][PAIRS]) {
  const bool scale_last = SIGNED && GROUP >= IN;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float part[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) { part[p] = scale_last ? sums[r][p] : 0.0f; }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      const float code = Codes<BITS>::value(packed[r], i, SIGNED);
#pragma unroll
      for (int p = 0; p < PAIRS; p++) { part[p] = metal::fma(code, v[p][i], part[p]); }
    }
    const uint group = column / uint(GROUP);
    const float scale = scale_last ? 1.0f : float(rows[r].scales[group]);
    const float bias = SIGNED ? 0.0f : float(rows[r].biases[group]);
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      if (scale_last) {
        sums[r][p] = part[p];
      } else {
        sums[r][p] = metal::fma(scale, part[p], sums[r][p]);
        if (!SIGNED) { sums[r][p] = metal::fma(bias, input_sum[p], sums[r][p]); }
      }
    }
  }
}

// Loads the lane's 16 columns from `column` on and adds their products to the sums.
template <typename X, typename S, int IN, int BITS, int GROUP, bool SIGNED, int ROWS, int PAIRS>
METAL_FUNC void add_columns(const thread Row<S>* rows, const thread InputRow<X>* inputs, uint column,
                            thread float (&sums)[ROWS][PAIRS]) {
  uint packed[ROWS][BITS / 2];
  load_codes<S, BITS, ROWS>(rows, column, packed);
  float v[PAIRS][COLUMNS];
  float input_sum[PAIRS];
  load_inputs<X, !SIGNED, PAIRS>(inputs, column, v, input_sum);
  add_products<S, IN, BITS, GROUP, SIGNED, ROWS, PAIRS>(rows, v, input_sum, column, packed, sums);
}

// sums[r][p] = weight row r times input row p, the same in every lane.
//
// Order of addition: a lane adds its columns from left to right, 16 at a time (in groups: the 16 by themselves, then
// scale * sum, then bias * sum of inputs, onto what it has); then simd_sum adds the lanes. The scale of a whole row
// comes last. PAIRS and ROWS have no influence on the order.
template <typename X, typename S, int IN, int BITS, int GROUP, bool SIGNED, int ROWS, int PAIRS>
METAL_FUNC void products(const thread Row<S>* rows, const thread InputRow<X>* inputs, uint lane,
                         thread float (&sums)[ROWS][PAIRS]) {
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) { sums[r][p] = 0.0f; }
  }
  const int step = 32 * COLUMNS;
  const uint first = lane * uint(COLUMNS);
#pragma unroll 2
  for (int s = 0; s < IN / step; s++) {
    add_columns<X, S, IN, BITS, GROUP, SIGNED, ROWS, PAIRS>(rows, inputs, first + uint(s * step), sums);
  }
  if (IN % step != 0 && first < uint(IN % step)) {
    add_columns<X, S, IN, BITS, GROUP, SIGNED, ROWS, PAIRS>(rows, inputs, first + uint(IN / step * step), sums);
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float scale = SIGNED && GROUP >= IN ? float(rows[r].scales[0]) : 1.0f;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) { sums[r][p] = simd_sum(sums[r][p]) * scale; }
  }
}

// How one matrix of an affine format is stored.
template <typename SCALE, int BIT_COUNT, int GROUP_COLUMNS>
struct Affine {
  typedef SCALE S;
  static constexpr constant int BITS = BIT_COUNT;
  static constexpr constant int GROUP = GROUP_COLUMNS;
};

// Loads the lane's 16 columns from `column` on once, and adds their products with the rows of two matrices.
template <typename X, typename A, typename B, int IN, int ROWS, int PAIRS>
METAL_FUNC void add_two_columns(const thread Row<typename A::S>* a, const thread Row<typename B::S>* b,
                                const thread InputRow<X>* inputs, uint column, thread float (&a_sums)[ROWS][PAIRS],
                                thread float (&b_sums)[ROWS][PAIRS]) {
  uint a_packed[ROWS][A::BITS / 2];
  uint b_packed[ROWS][B::BITS / 2];
  load_codes<typename A::S, A::BITS, ROWS>(a, column, a_packed);
  load_codes<typename B::S, B::BITS, ROWS>(b, column, b_packed);
  float v[PAIRS][COLUMNS];
  float input_sum[PAIRS];
  load_inputs<X, true, PAIRS>(inputs, column, v, input_sum);
  add_products<typename A::S, IN, A::BITS, A::GROUP, false, ROWS, PAIRS>(a, v, input_sum, column, a_packed, a_sums);
  add_products<typename B::S, IN, B::BITS, B::GROUP, false, ROWS, PAIRS>(b, v, input_sum, column, b_packed, b_sums);
}

// As products, for as many rows of each of two matrices; each sum has the bits that products gives it.
template <typename X, typename A, typename B, int IN, int ROWS, int PAIRS>
METAL_FUNC void two_products(const thread Row<typename A::S>* a, const thread Row<typename B::S>* b,
                             const thread InputRow<X>* inputs, uint lane, thread float (&a_sums)[ROWS][PAIRS],
                             thread float (&b_sums)[ROWS][PAIRS]) {
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      a_sums[r][p] = 0.0f;
      b_sums[r][p] = 0.0f;
    }
  }
  const int step = 32 * COLUMNS;
  const uint first = lane * uint(COLUMNS);
#pragma unroll 2
  for (int s = 0; s < IN / step; s++) {
    add_two_columns<X, A, B, IN, ROWS, PAIRS>(a, b, inputs, first + uint(s * step), a_sums, b_sums);
  }
  if (IN % step != 0 && first < uint(IN % step)) {
    add_two_columns<X, A, B, IN, ROWS, PAIRS>(a, b, inputs, first + uint(IN / step * step), a_sums, b_sums);
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      a_sums[r][p] = simd_sum(a_sums[r][p]);
      b_sums[r][p] = simd_sum(b_sums[r][p]);
    }
  }
}

// Finds the row `row` of a matrix of IN columns.
template <typename A, int IN>
METAL_FUNC void find_matrix_row(thread Row<typename A::S>& found, const device uint* weight,
                                const device typename A::S* scales, const device typename A::S* biases, uint row) {
  const uint groups = (IN + A::GROUP - 1) / A::GROUP;
  found.weight = weight + row * uint(IN * A::BITS / 32);
  found.scales = scales + row * groups;
  found.biases = biases + row * groups;
}

METAL_FUNC float sigmoid(float x) { return 1.0f / (1.0f + metal::precise::exp(-x)); }

// What stands between the products, in f32: silu(gate) * up, or gpt-oss's form with bounds.
template <bool CLAMPED>
METAL_FUNC float activate(float gate, float up, float alpha, float limit) {
  if (!CLAMPED) { return gate * sigmoid(gate) * up; }
  const float g = min(gate, limit);
  const float u = min(max(up, -limit), limit);
  return g * sigmoid(alpha * g) * (u + 1.0f);
}

// silu(gate) * up: in f32 throughout or, where MATCH, rounded to T wherever separate operations on T would round.
template <typename T, bool MATCH>
METAL_FUNC float silu_times(float gate, float up) {
  if (!MATCH) { return gate * sigmoid(gate) * up; }
  const float g = float(T(gate));
  const float silu = float(T(g * float(T(sigmoid(g)))));
  return silu * float(T(up));
}
