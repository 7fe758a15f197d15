  // out[row, n] = sum over the row's terms, in rank order, of rows[term, n], which are weighted; then + shared[row, n].
  // grid = (HIDDEN, rows, 1), threadgroup = (256, 1, 1); a thread makes one element.
  const uint n = thread_position_in_grid.x;
  const uint row = thread_position_in_grid.y;
  if (n >= uint(HIDDEN)) { return; }
  const uint begin = offsets[row];
  const uint count = offsets[row + 1] - begin;
  float sum = 0.0f;
  for (uint rank = 0; rank < count; rank++) {
    const float term = weighted_rows[size_t(terms[begin + rank]) * HIDDEN + n];
    sum = rank == 0 ? term : sum + term;
  }
  if (SHARED) {
    const float last = float(shared_rows[size_t(row) * HIDDEN + n]);
    sum = count == 0 ? last : sum + last;
  }
  out[size_t(row) * HIDDEN + n] = T(sum);
