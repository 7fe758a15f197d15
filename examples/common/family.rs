//! `--family`.

use streamed_experts::Family;

/// Reads a family's name.
pub fn parse(name: &str) -> Result<Family, String> {
    let all = [Family::Stock, Family::Host, Family::Auto];
    all.into_iter()
        .find(|family| family.name() == name)
        .ok_or_else(|| "the families are stock, host and auto".into())
}
