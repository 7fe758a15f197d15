//! What several examples need: sizes as people write them, sources, routing traces, and one way to end on an error.
#![allow(dead_code, unreachable_pub, reason = "each example uses its part")]

pub mod budget;
pub mod bytes;
pub mod family;
pub mod first_layers;
pub mod memory;
pub mod numbers;
pub mod source;
pub mod timed;
pub mod trace;

/// Prints an error with its causes on one line, and gives the exit code for it.
pub fn report(error: &dyn std::error::Error) -> std::process::ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let line = next.to_string();
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        cause = next.source();
    }
    eprintln!("error: {text}");
    std::process::ExitCode::from(2)
}

/// Anything that ends an example.
pub type Failure = Box<dyn std::error::Error>;
