#!/usr/bin/env bash
# Runs what Miri can run of the library's own tests: memory, tables, plans, formats. It cannot run MLX, kernels in assembly,
# or reads of real files through threads in bearable time. Needs the nightly toolchain with miri and rust-src.
set -eu -o pipefail
cd "$(dirname "$0")/.."

# Files are read (fixtures), and system calls go through libc, which Miri knows.
export MIRIFLAGS="-Zmiri-disable-isolation" RUSTFLAGS="--cfg rustix_use_libc" CARGO_TARGET_DIR=target/miri
cargo +nightly miri test --no-default-features --lib -- \
    memory::latch memory::bank residency::table residency::spread residency::governor routing:: policy:: formats::geometry \
    compute::host::pack compute::host::schedule store::queue "$@"
