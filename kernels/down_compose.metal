  // out[row, n] = sum over the row's terms, in rank order, of weight * (down row n . inner[pair]); then + shared[row, n].
  // grid = (32, SIMDGROUPS * blocks, rows), threadgroup = (32, SIMDGROUPS, 1); a threadgroup makes ROWS columns of one
  // row of out, its simdgroups take the ranks in turn. The weighted products go through threadgroup memory, so that the
  // thread which adds them is not the one which multiplied them: product and sum cannot be fused into one rounding.
  const uint lane = thread_index_in_simdgroup;
  const uint member = thread_position_in_threadgroup.y;
  const uint first = threadgroup_position_in_grid.y * uint(ROWS);
  const uint row = thread_position_in_grid.z;
  const uint begin = offsets[row];
  const uint count = offsets[row + 1] - begin;
  threadgroup float weighted[RANKS * ROWS];

  for (uint rank = member; rank < count; rank += uint(SIMDGROUPS)) {
    const uint slot = terms[2 * (begin + rank)];
    const uint pair = terms[2 * (begin + rank) + 1];
    const device uint* base = bank + layout[0] + size_t(slot) * layout[1];
    Row<S> rows[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const uint n = clamped_row<HIDDEN, ROWS>(first, r);
      find_row<S, INNER, BITS, GROUP>(rows[r], base, layout[10], layout[11], layout[12], n);
    }
    InputRow<float> inputs[1];
    inputs[0].x = inner + size_t(pair) * INNER;
    float sums[ROWS][1];
    products<float, S, INNER, BITS, GROUP, SIGNED, ROWS, 1>(rows, inputs, lane, sums);
    if (lane == 0) {
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const uint n = clamped_row<HIDDEN, ROWS>(first, r);
        const float bias = BIAS ? float(((const device L*)(base + layout[13]))[n]) : 0.0f;
        const float product = BIAS ? sums[r][0] + bias : sums[r][0];
        weighted[rank * ROWS + r] = weights[begin + rank] * product;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const uint n = first + lane;
  if (member == 0 && lane < uint(ROWS) && n < uint(HIDDEN)) {
    float sum = 0.0f;
    for (uint rank = 0; rank < count; rank++) {
      const float term = weighted[rank * ROWS + lane];
      sum = rank == 0 ? term : sum + term;
    }
    if (SHARED) {
      const float last = float(shared_rows[size_t(row) * HIDDEN + n]);
      sum = count == 0 ? last : sum + last;
    }
    out[size_t(row) * HIDDEN + n] = T(sum);
  }
