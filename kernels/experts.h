// Shared by the kernels of this folder: products of quantised weight rows with input rows, one simdgroup each.
//
// A weight row of IN columns is packed little-endian into u32 words, BITS (4 or 8) bits a column. Each lane takes 16
// columns at a time, lane l of step s those from (s * 32 + l) * 16 on. What a code stands for:
//   signed:  (code - offset) * scale         offset 8 for 4 bits, 128 for 8 bits with the sign bit flipped
//   affine:  code * scale + bias
// Codes become floats without a conversion: code bits that lie at bit p < 16 of 2^23's mantissa make 2^23 + code * 2^p, from
// which 2^23 + offset * 2^p is subtracted exactly; the input column is multiplied by 2^-p beforehand, exactly too.
// Every rounding is written out: metal::fma where a product and a sum round once, nothing for a compiler to contract.

constexpr constant int COLUMNS = 16;

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
  static METAL_FUNC float low(uint w) { return float(as_type<X>(ushort(w & 0xffffu))); }
  static METAL_FUNC float high(uint w) { return float(as_type<X>(ushort(w >> 16))); }

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

// 2^23 with `field`, which must fit below it, in its low bits; minus 2^23 and `offset`.
METAL_FUNC float code_value(uint field, float offset) { return as_type<float>(field | 0x4b000000u) - (8388608.0f + offset); }

template <int BITS>
struct Codes;

template <>
struct Codes<4> {
  static METAL_FUNC void load(const device uint* weight, thread uint* words, bool is_signed) {
    const uint2 w = *(const device uint2*)weight;
    words[0] = w.x;
    words[1] = w.y;
  }

  // The value of column i, times 16 to the power of i % 4.
  static METAL_FUNC float value(const thread uint* words, int i, bool is_signed) {
    const uint half_word = words[i / 8] >> (i % 8 < 4 ? 0 : 16);
    const int shift = 4 * (i % 4);
    return code_value(half_word & (0xfu << shift), is_signed ? float(8 << shift) : 0.0f);
  }

  static METAL_FUNC float factor(int i) {
    return i % 4 == 0 ? 1.0f : i % 4 == 1 ? 0.0625f : i % 4 == 2 ? 0.00390625f : 0.000244140625f;
  }
};

template <>
struct Codes<8> {
  static METAL_FUNC void load(const device uint* weight, thread uint* words, bool is_signed) {
    const uint4 w = *(const device uint4*)weight;
    const uint flip = is_signed ? 0x80808080u : 0u;
    words[0] = w.x ^ flip;
    words[1] = w.y ^ flip;
    words[2] = w.z ^ flip;
    words[3] = w.w ^ flip;
  }

  // The value of column i, times 256 where i is odd.
  static METAL_FUNC float value(const thread uint* words, int i, bool is_signed) {
    const uint half_word = words[i / 4] >> (i % 4 < 2 ? 0 : 16);
    const int shift = 8 * (i % 2);
    return code_value(half_word & (0xffu << shift), is_signed ? float(128 << shift) : 0.0f);
  }

  static METAL_FUNC float factor(int i) { return i % 2 == 0 ? 1.0f : 0.00390625f; }
};

// Where the parts of one weight row begin. `biases` is not read when the format is signed.
template <typename S>
struct Row {
  const device uint* weight;
  const device S* scales;
  const device S* biases;
};

// The row `row` of a projection whose weights, scales and biases begin at these words of `slot`.
template <typename S, int IN, int BITS, int GROUP>
METAL_FUNC Row<S> row_at(const device uint* slot, uint weight, uint scales, uint biases, uint row) {
  const uint groups = (IN + GROUP - 1) / GROUP;
  Row<S> result;
  result.weight = slot + weight + row * uint(IN * BITS / 32);
  result.scales = (const device S*)(slot + scales) + row * groups;
  result.biases = (const device S*)(slot + biases) + row * groups;
  return result;
}

// An input row.
template <typename X>
struct InputRow {
  const device X* x;
};

// Adds the lane's 16 columns from `column` on to the sums.
template <typename X, typename S, int IN, int BITS, int GROUP, bool SIGNED, int ROWS, int PAIRS>
METAL_FUNC void add_columns(const thread Row<S>* rows, const thread InputRow<X>* inputs, uint column,
                            thread float (&sums)[ROWS][PAIRS]) {
  const bool scale_last = SIGNED && GROUP >= IN;
  uint words[ROWS][BITS / 2];
#pragma unroll
  for (int r = 0; r < ROWS; r++) { Codes<BITS>::load(rows[r].weight + column * BITS / 32, words[r], SIGNED); }
  float v[PAIRS][COLUMNS];
  float input_sum[PAIRS];
#pragma unroll
  for (int p = 0; p < PAIRS; p++) {
    Input<X, sizeof(X)>::load(inputs[p].x + column, v[p]);
    input_sum[p] = 0.0f;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      if (!SIGNED) { input_sum[p] += v[p][i]; }
      v[p][i] *= Codes<BITS>::factor(i);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float part[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) { part[p] = scale_last ? sums[r][p] : 0.0f; }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      const float code = Codes<BITS>::value(words[r], i, SIGNED);
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

METAL_FUNC float sigmoid(float x) { return 1.0f / (1.0f + metal::precise::exp(-x)); }

// What stands between the products, in f32: silu(gate) * up, or gpt-oss's form with bounds.
template <bool CLAMPED>
METAL_FUNC float activate(float gate, float up, float alpha, float limit) {
  if (!CLAMPED) { return gate * sigmoid(gate) * up; }
  const float g = min(gate, limit);
  const float u = min(max(up, -limit), limit);
  return g * sigmoid(alpha * g) * (u + 1.0f);
}
