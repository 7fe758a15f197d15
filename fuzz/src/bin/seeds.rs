//! Writes every target's seeds to `corpus/TARGET/` in the current folder, where cargo-fuzz begins.

use std::{fs, io, path::Path};

use streamed_experts_fuzz::TARGETS;

fn main() -> io::Result<()> {
    for target in TARGETS {
        let folder = Path::new("corpus").join(target.name);
        fs::create_dir_all(&folder)?;
        for (index, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(format!("seed-{index}")), seed)?;
        }
        println!("{}", target.name);
    }
    Ok(())
}
