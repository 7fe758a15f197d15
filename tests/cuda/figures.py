"""How fast the kernels are: bytes of the experts a layer touches, over time by graph replay, beside a plain read."""

import cupy as cp
import numpy as np

from check import Layer, Runner, Work, plan_of, to_type

READ = r"""
extern "C" __global__ void read(const uint4* data, size_t count, unsigned int* out) {
  uint4 sum = {0, 0, 0, 0};
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x, step = size_t(gridDim.x) * blockDim.x;
#pragma unroll 8
  for (; i < count; i += step) { uint4 w = data[i]; sum.x ^= w.x; sum.y ^= w.y; sum.z ^= w.z; sum.w ^= w.w; }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678u) { out[0] = sum.x; }
}
"""


def replay_seconds(record, replays=20):
    """Median time of one replay of what `record` launches."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        record()
        stream.synchronize()
        stream.begin_capture()
        record()
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        times = []
        for _ in range(replays):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) / 1000)
    return float(np.median(times))


def read_rate(bank):
    read = cp.RawKernel(READ, "read")
    out, count = cp.zeros(1, dtype=cp.uint32), bank.nbytes // 16
    best = min(replay_seconds(lambda: read((blocks,), (512,), (bank, cp.uint64(count), out))) for blocks in (132 * 4, 132 * 16, 132 * 64))
    return bank.nbytes / best


def decode(name, layer, rate, kind="bf16"):
    """top 8 at M = 1: layers whose experts change from one to the next, so that they do not stay in the L2 cache."""
    layers = layer.slots // 8
    x, _ = to_type(np.random.default_rng(1).standard_normal((1, layer.hidden)).astype(np.float32), kind)
    works = [Work([[(8 * n + rank, np.float32(0.1)) for rank in range(8)]], 1) for n in range(layers)]
    inner, out = cp.empty((8, layer.inner), dtype=cp.float32), cp.empty_like(x)
    bytes_moved = layers * 8 * layer.expert_bytes
    best = None
    for gate_rows in (1, 2, 4):
        runner = Runner(layer, kind, gate_rows=gate_rows)
        seconds = replay_seconds(lambda: [runner.gate_up(work, x, inner) for work in works])
        moved = bytes_moved * 2 / 3
        print(f"  {name} gate_up ROWS {gate_rows}: {seconds / layers * 1e6:.1f} us, {moved / seconds / rate:.3f} of the read rate")
    for down_rows in (2, 4, 8):
        runner = Runner(layer, kind, compose_rows=down_rows)
        seconds = replay_seconds(lambda: [runner.down_compose(work, inner, x, out) for work in works])
        print(f"  {name} down_compose ROWS {down_rows}: {seconds / layers * 1e6:.1f} us, {bytes_moved / 3 / seconds / rate:.3f}")
    runner = Runner(layer, kind)

    def both():
        for work in works:
            runner.gate_up(work, x, inner)
            runner.down_compose(work, inner, x, out)

    for _ in range(2):
        seconds = replay_seconds(both)
        print(f"  {name} whole layer: {seconds / layers * 1e6:.1f} us for {8 * layer.expert_bytes} B")
    print(f"figure {name}_m1_vs_copy {bytes_moved / seconds / rate:.3f}")


def prefill(layer, rate, kind="bf16"):
    for rows in (5, 32, 256):
        rng = np.random.default_rng(rows)
        plan = plan_of(rng, rows, 8, layer.slots)
        x, _ = to_type(rng.standard_normal((rows, layer.hidden)).astype(np.float32), kind)
        for per_tile in (1, 2, 4, 8):
            work = Work(plan, per_tile)
            inner = cp.empty((work.pairs, layer.inner), dtype=cp.float32)
            weighted = cp.empty((work.pairs, layer.hidden), dtype=cp.float32)
            out, runner = cp.empty_like(x), Runner(layer, kind)

            def three():
                runner.gate_up(work, x, inner)
                runner.down(work, inner, weighted)
                runner.compose(work, weighted, x, out)

            print(f"  M {rows}, {layer.slots} experts, tiles of {per_tile}: {replay_seconds(three, 10) * 1e6:.0f} us")


def figures():
    layer = Layer(6144, 2048, 4, None, True, "f32", 64, 1)
    rate = read_rate(layer.bank)
    print(f"  {cp.cuda.runtime.getDeviceProperties(0)['name'].decode()}: plain read {rate / 1e9:.0f} GB/s of {layer.bank.nbytes} B")
    decode("gpu_q4_top8", layer, rate)
    decode("gpu_q4_top8_f32", layer, rate, "f32")
    prefill(layer, rate)
    decode("gpu_q8_top8", Layer(6144, 2048, 8, None, True, "f32", 64, 2), rate)
    decode("gpu_affine4_top8", Layer(6144, 2048, 4, 64, False, "bf16", 64, 3), rate)
