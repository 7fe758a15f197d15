#!/usr/bin/env bash
# Runs the models (every interleaving of small scenes, by loom), then plants faults one by one in a copy of the sources and
# sees that a model catches each. Some minutes; the first run also downloads loom. From the root: `tools/model-check.sh`.
set -u -o pipefail
cd "$(dirname "$0")/.."

readonly WORK=$PWD/target/model-check
readonly TREE=$WORK/tree
export RUSTFLAGS="--cfg streamed_experts_loom" CARGO_TARGET_DIR=$WORK/build LOOM_MAX_BRANCHES=100000

copy() {
    rm -rf "$TREE"
    mkdir -p "$TREE"
    git ls-files -z -- Cargo.toml Cargo.lock build.rs README.md src benches examples kernels tools | tar -c --null -T - | tar -x -C "$TREE"
}

models() {
    (cd "$TREE" && timeout 300 cargo test --release --no-default-features --lib loom_)
}

copy
if ! models >"$WORK/models.log" 2>&1; then
    tail -n 40 "$WORK/models.log"
    echo "the models fail without any fault: $WORK/models.log"
    exit 1
fi
echo "figure loom_models $(grep -c '^test .*loom_.* ok$' "$WORK/models.log")"

caught=0 mutants=0 missed=0
# mutant WHAT FILE PERL-SUBSTITUTION: plants one fault; a model must fail.
mutant() {
    local what=$1 file=$2 change=$3
    mutants=$((mutants + 1))
    cp "$file" "$TREE/$file"
    perl -0pi -e "$change" "$TREE/$file"
    if cmp -s "$file" "$TREE/$file"; then
        printf '%-70s DOES NOT APPLY\n' "$what"
        missed=$((missed + 1))
        return
    fi
    if models >"$WORK/mutant-$mutants.log" 2>&1; then
        printf '%-70s NOT CAUGHT\n' "$what"
        missed=$((missed + 1))
    elif grep -q '^error: could not compile\|^error\[E' "$WORK/mutant-$mutants.log"; then
        printf '%-70s DOES NOT COMPILE\n' "$what"
        missed=$((missed + 1))
    else
        printf '%-70s caught by %s\n' "$what" \
            "$(grep -o 'loom_[a-z_]*' <<<"$(grep 'FAILED$\|has overflowed\|panicked at' "$WORK/mutant-$mutants.log")" | head -n 1)"
        caught=$((caught + 1))
    fi
    cp "$file" "$TREE/$file"
}

mutant "the end of a reading publishes nothing" src/memory/latch.rs 's/fetch_sub\(1, Release\)/fetch_sub(1, Relaxed)/'
mutant "the end of a filling publishes nothing" src/memory/latch.rs 's/store\(0, Release\)/store(0, Relaxed)/'
mutant "a reader does not see what was filled" src/memory/latch.rs 's/fetch_update\(Acquire/fetch_update(Relaxed/'
mutant "a filling does not see that readers have ended" src/memory/latch.rs \
    's/compare_exchange\(0, FILLING, Acquire/compare_exchange(0, FILLING, Relaxed/'
mutant "a latch is looked at, then set" src/memory/latch.rs \
    's/self\.latches\[slot\.index\(\)\]\.compare_exchange\(0, FILLING, Acquire, Relaxed\)\.is_ok\(\)/{ let latch = &self.latches[slot.index()]; let free = latch.load(Acquire) == 0; if free { latch.store(FILLING, Relaxed); } free }/'
mutant "a release wakes nobody who waits for slots" src/residency/settle.rs \
    's/self\.inner\.core\.slots_freed\(tier\);//'
mutant "a woken request does not look whether there are slots" src/residency/admission.rs \
    's/if request\.possible\(&state, Some\(ticket\)\) \{/if true {/'
mutant "a woken request does not look whether the manager was closed" src/residency/admission.rs \
    's/(state = wait\(&self\.core\.admission, state\);\s*)if state\.closed \{/$1if false {/'
mutant "cancelling wakes nobody" src/residency/cancel.rs 's/watcher\.wake_all\(\);//'
mutant "a landing tells nobody" src/residency/state.rs \
    's/(landed\.push_back[^;]*;\s*)record\.wake\.notify_all\(\);/$1/'
mutant "a load that is queued wakes no reader" src/store/queue.rs \
    's/(drop\(waiting\);\s*)self\.work\.iter\(\)\.for_each\(Condvar::notify_one\);/$1/'
mutant "closing does not wake the readers" src/store/queue.rs \
    's/(closed = true;\s*)self\.work\.iter\(\)\.for_each\(Condvar::notify_all\);/$1/'
mutant "a failed load keeps its slot" src/residency/state.rs \
    's/if landing\.result\.is_ok\(\) && \(claimed \|\| pinned\)/if claimed || pinned/'
mutant "the next in line is not woken when one leaves it" src/residency/admission.rs \
    's/self\.core\.slots_freed\(&state\.tiers\[tier\]\); \/\/ the next[^\n]*//'

echo "figure mutants_caught $caught"
echo "figure mutants $mutants"
[ "$missed" -eq 0 ]
