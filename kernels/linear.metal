  // out[row, n] = W row n . x[row].
  // grid = (32, SIMDGROUPS * blocks, tiles of PAIRS rows), threadgroup = (32, SIMDGROUPS, 1); a simdgroup makes ROWS columns
  // of the PAIRS rows of a tile.
  const uint lane = thread_index_in_simdgroup;
  const uint first = thread_position_in_grid.y * uint(ROWS);
  const uint first_row = thread_position_in_grid.z * uint(PAIRS);
  const uint count = counts[0];
  if (first >= uint(OUT) || first_row >= count) { return; }

  Row<S> rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    find_matrix_row<Affine<S, BITS, GROUP>, IN>(rows[r], weight, scales, biases, clamped_row<OUT, ROWS>(first, r));
  }
  InputRow<T> inputs[PAIRS];
#pragma unroll
  for (int p = 0; p < PAIRS; p++) { inputs[p].x = x + size_t(min(first_row + uint(p), count - 1u)) * IN; }
  float sums[ROWS][PAIRS];
  products<T, S, IN, BITS, GROUP, false, ROWS, PAIRS>(rows, inputs, lane, sums);

  if (lane == 0) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const uint n = first + uint(r);
#pragma unroll
      for (int p = 0; p < PAIRS; p++) {
        const uint row = first_row + uint(p);
        if (n < uint(OUT) && row < count) { out[size_t(row) * OUT + n] = T(sums[r][p]); }
      }
    }
  }
