  // out[pair, n] = weight of the pair * (down row n . inner[pair]) for the pairs of one tile, which share a slot.
  // grid = (32, SIMDGROUPS * blocks, tiles), threadgroup = (32, SIMDGROUPS, 1); a simdgroup makes ROWS columns of out.
  const uint lane = thread_index_in_simdgroup;
  const uint first = thread_position_in_grid.y * uint(ROWS);
  const uint tile = thread_position_in_grid.z;
  if (first >= uint(HIDDEN)) { return; }
  const uint slot = tiles[3 * tile];
  const uint first_pair = tiles[3 * tile + 1];
  const uint count = tiles[3 * tile + 2];
  const device uint* base = bank + layout[0] + size_t(slot) * layout[1];

  Row<S> rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const uint n = clamped_row<HIDDEN, ROWS>(first, r);
    find_row<S, INNER, BITS, GROUP>(rows[r], base, layout[10], layout[11], layout[12], n);
  }
  InputRow<float> inputs[PAIRS];
#pragma unroll
  for (int p = 0; p < PAIRS; p++) {
    inputs[p].x = inner + size_t(first_pair + min(uint(p), count - 1u)) * INNER;
  }
  float sums[ROWS][PAIRS];
  products<float, S, INNER, BITS, GROUP, SIGNED, ROWS, PAIRS>(rows, inputs, lane, sums);

  if (lane == 0) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const uint n = first + uint(r);
      if (n < uint(HIDDEN)) {
        const float bias = BIAS ? float(((const device L*)(base + layout[13]))[n]) : 0.0f;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
          if (uint(p) < count) {
            const float product = BIAS ? sums[r][p] + bias : sums[r][p];
            out[size_t(first_pair + uint(p)) * HIDDEN + n] = weights[first_pair + uint(p)] * product;
          }
        }
      }
    }
  }
