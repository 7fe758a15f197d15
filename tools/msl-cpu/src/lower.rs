//! What stands between Metal and C++ once the shim has defined the address spaces away.

use regex::{Captures, Regex};

/// Blanks comments, drops the host's attributes, and moves threadgroup variables into the runtime's arena. Line numbers
/// stay.
pub(crate) fn lower(text: &str) -> String {
    let blanked = blank_comments(text);
    let attributes = pattern(r"\[\[\s*(host_name\([^)]*\)|kernel|threadgroup\(\d+\))\s*\]\]");
    let plain = attributes.replace_all(&blanked, "");
    replace_threadgroup_variables(&plain, |count, kind, name, extent| {
        format!(
            "static const char msl_k{count} = 0; typedef {kind} msl_t{count} {extent}; \
             msl_t{count}& {name} = *reinterpret_cast<msl_t{count}*>(\
             ::mslrt::tg_alloc(&msl_k{count}, sizeof(msl_t{count}), alignof(msl_t{count})));"
        )
    })
}

/// Replaces each declaration of a threadgroup variable by what `with` makes of its number, type, name and extent.
pub(crate) fn replace_threadgroup_variables(
    text: &str,
    with: impl Fn(usize, &str, &str, &str) -> String,
) -> String {
    let declaration =
        pattern(r"(^|[;{}\n])(\s*)threadgroup\s+([\w:]+(?:<[^;>]*>)?)\s+(\w+)\s*((?:\[[^;]*\])?)\s*;");
    let mut count = 0;
    declaration
        .replace_all(text, |found: &Captures<'_>| {
            count += 1;
            format!("{}{}{}", &found[1], &found[2], with(count, &found[3], &found[4], &found[5]))
        })
        .into_owned()
}

/// Comments become spaces.
pub(crate) fn blank_comments(text: &str) -> String {
    let blank = |found: &Captures<'_>| found[0].replace(|c| c != '\n', " ");
    pattern(r"//[^\n]*|(?s:/\*.*?\*/)").replace_all(text, blank).into_owned()
}

pub(crate) fn pattern(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant")
}
