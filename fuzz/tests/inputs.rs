//! If these fail, a reader panics, asks for too much, or believes what contradicts itself.

use std::{fs, panic, path::Path};

use streamed_experts_fuzz::{TARGETS, Target};

/// Mutations of the seeds, each target.
const MUTATIONS: usize = 3_000;

fn run(target: Target, input: &[u8], what: &str) {
    if let Err(panic) = panic::catch_unwind(|| (target.run)(input)) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{what}", target.name));
        fs::write(&kept, input).unwrap();
        eprintln!("{}: the input is in {}", target.name, kept.display());
        panic::resume_unwind(panic);
    }
}

fn target(name: &str) -> Target {
    *TARGETS.iter().find(|target| target.name == name).unwrap()
}

/// One to eight small changes, at places that lean towards the beginning.
fn mutate(random: &mut fastrand::Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..random.usize(1..=8) {
        if bytes.is_empty() {
            bytes.push(random.u8(..));
        }
        let at = random.usize(0..bytes.len()).min(random.usize(0..bytes.len()));
        match random.u8(0..8) {
            0 => bytes[at] ^= 1 << random.u8(0..8),
            1 => bytes[at] = random.u8(..),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, random.u8(..)),
            4 => bytes.truncate(at),
            // A number of the text becomes another.
            5 => {
                if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                    let numbers: [&[u8]; 6] =
                        [b"0", b"-1", b"18446744073709551615", b"4294967296", b"1e400", b"65535"];
                    let end = bytes[at + digit..].iter().position(|byte| !byte.is_ascii_digit());
                    let end = end.map_or(bytes.len(), |end| at + digit + end);
                    bytes.splice(at + digit..end, random.choice(numbers).unwrap().iter().copied());
                }
            }
            6 => {
                let end = random.usize(at..=(at + 64).min(bytes.len()));
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let from = random.usize(0..=other.len());
                let end = random.usize(from..=(from + 64).min(other.len()));
                let at_end = (at + (end - from)).min(bytes.len());
                bytes.splice(at..at_end, other[from..end].iter().copied());
            }
        }
    }
    bytes
}

fn seeds_and_mutations(name: &str) {
    let target = target(name);
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    for (index, seed) in seeds.iter().enumerate() {
        run(target, seed, &format!("seed-{index}"));
    }
    let finds = Path::new(env!("CARGO_MANIFEST_DIR")).join("finds").join(name);
    if let Ok(files) = fs::read_dir(finds) {
        for file in files {
            let path = file.unwrap().path();
            run(target, &fs::read(&path).unwrap(), &path.file_name().unwrap().to_string_lossy());
        }
    }
    let mut random = fastrand::Rng::with_seed(1);
    for index in 0..MUTATIONS {
        let (seed, other) = (random.usize(0..seeds.len()), random.usize(0..seeds.len()));
        run(target, &mutate(&mut random, &seeds[seed], &seeds[other]), &format!("mutation-{index}"));
    }
}

macro_rules! inputs {
    ($($name:ident),*) => {
        $(#[test] fn $name() { seeds_and_mutations(stringify!($name)); })*

        #[test]
        fn every_target_is_tested() {
            assert!(TARGETS.iter().map(|target| target.name).eq([$(stringify!($name)),*]));
        }
    };
}

inputs!(checkpoint, shard_index, config, colibri, slab, checksums, ledger, traces, plans);
