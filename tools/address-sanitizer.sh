#!/usr/bin/env bash
# The tests under AddressSanitizer, without MLX (whose library is not built for it). Needs the nightly toolchain with
# rust-src.
set -eu -o pipefail
cd "$(dirname "$0")/.."

export RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=target/address-sanitizer
cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu --no-default-features --lib --tests "$@"
