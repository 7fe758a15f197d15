//! How near reading comes to what the drive, the page cache and the processor can do: each figure is a ratio of two times of
//! the same run, the median of several rounds, whose order alternates.
//!
//! `cargo bench --bench streaming [-- --quick] [NAME…]` prints `figure NAME VALUE`. Experts are those of Qwen3-30B (2048 × 768,
//! 4 bits, groups of 64), in a checkpoint as mlx-community has it and in a slab packed from that, both written beneath the
//! target folder. Pages are called cold when `mincore` says that fewer than one in a hundred is in memory.

mod compute;
mod data;
mod drives;
mod lease;
mod pages;
mod raw;

use data::Data;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Experts in the files.
    pub(crate) experts: u32,
    pub(crate) rounds: usize,
}

/// A figure: its name, its goal, and how it is measured.
type Figure = (&'static str, &'static str, fn(&Data, Effort) -> Vec<(String, f64)>);

const FIGURES: &[Figure] = &[
    ("cold_direct_vs_raw", ">= 0.97", lease::cold_direct),
    ("cold_stock_vs_raw", ">= 0.95", lease::cold_stock),
    ("warm_vs_memcpy", ">= 0.95", lease::warm),
    ("verify_vs_raw", ">= 0.95", lease::verify),
    ("overlap", "<= 1.08", compute::overlap),
    ("hit_overhead", "<= 0.01", compute::hit_overhead),
    ("mirror", ">= 0.95", drives::mirror),
];

pub(crate) fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let effort = if quick { Effort { experts: 48, rounds: 5 } } else { Effort { experts: 128, rounds: 11 } };
    let data = Data::write(effort.experts);
    println!("{} experts of {} B", effort.experts, data.slot_bytes());
    for (name, goal, measure) in FIGURES {
        if names.is_empty() || names.iter().any(|wanted| *wanted == name) {
            for (name, value) in measure(&data, effort) {
                println!("figure {name} {value:.4}");
            }
            println!("({name}: goal {goal})");
        }
    }
}

/// The median of what `round` says, called with whether the second of its two measurements comes first.
pub(crate) fn median(rounds: usize, mut round: impl FnMut(bool) -> f64) -> f64 {
    let mut values: Vec<f64> = (0..rounds).map(|number| round(number % 2 == 1)).collect();
    values.sort_by(f64::total_cmp);
    println!("  rounds: {values:.3?}");
    values[values.len() / 2]
}

/// Two measurements in either order.
pub(crate) fn both(swap: bool, mut one: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> (f64, f64) {
    if swap {
        let second = other();
        (one(), second)
    } else {
        (one(), other())
    }
}
