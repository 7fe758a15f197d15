  // inner[pair, n] = activate(gate row n . x, up row n . x) for the pairs of one tile, which share a slot.
  // grid = (32, SIMDGROUPS * blocks, tiles), threadgroup = (32, SIMDGROUPS, 1); a simdgroup makes ROWS columns of inner.
  const uint lane = thread_index_in_simdgroup;
  const uint first = thread_position_in_grid.y * uint(ROWS);
  const uint tile = thread_position_in_grid.z;
  if (first >= uint(INNER)) { return; }
  const uint slot = tiles[3 * tile];
  const uint first_pair = tiles[3 * tile + 1];
  const uint count = tiles[3 * tile + 2];
  const device uint* base = bank + layout[0] + size_t(slot) * layout[1];

  Row<S> rows[2 * ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const uint n = clamped_row<INNER, ROWS>(first, r);
    find_row<S, HIDDEN, BITS, GROUP>(rows[2 * r], base, layout[2], layout[3], layout[4], n);
    find_row<S, HIDDEN, BITS, GROUP>(rows[2 * r + 1], base, layout[6], layout[7], layout[8], n);
  }
  InputRow<T> inputs[PAIRS];
#pragma unroll
  for (int p = 0; p < PAIRS; p++) {
    inputs[p].x = x + size_t(pair_rows[first_pair + min(uint(p), count - 1u)]) * HIDDEN;
  }
  float sums[2 * ROWS][PAIRS];
  products<T, S, HIDDEN, BITS, GROUP, SIGNED, 2 * ROWS, PAIRS>(rows, inputs, lane, sums);

  if (lane == 0) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const uint n = first + uint(r);
      if (n < uint(INNER)) {
        const float gate_bias = BIAS ? float(((const device L*)(base + layout[5]))[n]) : 0.0f;
        const float up_bias = BIAS ? float(((const device L*)(base + layout[9]))[n]) : 0.0f;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
          if (uint(p) < count) {
            const float gate = BIAS ? sums[2 * r][p] + gate_bias : sums[2 * r][p];
            const float up = BIAS ? sums[2 * r + 1][p] + up_bias : sums[2 * r + 1][p];
            inner[size_t(first_pair + uint(p)) * INNER + n] =
                activate<CLAMPED>(gate, up, as_type<float>(uint(ALPHA)), as_type<float>(uint(LIMIT)));
          }
        }
      }
    }
  }
