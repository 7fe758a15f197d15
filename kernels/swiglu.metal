  // out[row, n] = silu(gate row n . x[row]) * (up row n . x[row]): both products in one pass over x.
  // grid = (32, SIMDGROUPS * blocks, tiles of PAIRS rows), threadgroup = (32, SIMDGROUPS, 1); a simdgroup makes ROWS columns
  // of the PAIRS rows of a tile.
  typedef Affine<GATE_S, GATE_BITS, GATE_GROUP> Gate;
  typedef Affine<UP_S, UP_BITS, UP_GROUP> Up;
  const uint lane = thread_index_in_simdgroup;
  const uint first = thread_position_in_grid.y * uint(ROWS);
  const uint first_row = thread_position_in_grid.z * uint(PAIRS);
  const uint count = counts[0];
  if (first >= uint(OUT) || first_row >= count) { return; }

  Row<GATE_S> gates[ROWS];
  Row<UP_S> ups[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const uint n = clamped_row<OUT, ROWS>(first, r);
    find_matrix_row<Gate, IN>(gates[r], gate_weight, gate_scales, gate_biases, n);
    find_matrix_row<Up, IN>(ups[r], up_weight, up_scales, up_biases, n);
  }
  InputRow<T> inputs[PAIRS];
#pragma unroll
  for (int p = 0; p < PAIRS; p++) { inputs[p].x = x + size_t(min(first_row + uint(p), count - 1u)) * IN; }
  float gate_sums[ROWS][PAIRS];
  float up_sums[ROWS][PAIRS];
  two_products<T, Gate, Up, IN, ROWS, PAIRS>(gates, ups, inputs, lane, gate_sums, up_sums);

  if (lane == 0) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const uint n = first + uint(r);
#pragma unroll
      for (int p = 0; p < PAIRS; p++) {
        const uint row = first_row + uint(p);
        if (n < uint(OUT) && row < count) {
          out[size_t(row) * OUT + n] = T(silu_times<T, MATCH>(gate_sums[r][p], up_sums[r][p]));
        }
      }
    }
  }
