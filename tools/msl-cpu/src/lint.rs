//! Faults that a C++ compiler accepts and Metal's does not.

use crate::lower::{blank_comments, pattern};

/// Complaints about `header` (helper functions) and `body`, empty if there are none: lambdas, recursion, threadgroup
/// variables outside the kernel, parameters that point into no address space, `double`, and function pointers.
#[must_use]
pub fn lint(header: &str, body: &str) -> Vec<String> {
    let (header, body) = (blank_comments(header), blank_comments(body));
    let mut complaints = Vec::new();
    for (place, text) in [("header", &header), ("body", &body)] {
        let mut complain = |what: &str, regex: &str| {
            if let Some(found) = pattern(regex).find(text) {
                let line = text[..found.start()].matches('\n').count() + 1;
                complaints.push(format!("{what} in the {place}, line {line}: {}", found.as_str().trim()));
            }
        };
        complain("a lambda", r"\[[&=\w,\s]*\]\s*\([^)]*\)\s*(->\s*\w+\s*)?\{");
        complain("a double", r"\bdouble\b");
        complain("a function pointer", r"\(\s*\*\s*\w+\s*\)\s*\(");
    }
    let threadgroup = r"(?m)^\s*threadgroup\s+[\w:]+\s+\w+\s*(\[[^;]*\])?\s*;";
    if let Some(found) = pattern(threadgroup).find(&header) {
        complaints.push(format!("a threadgroup variable outside the kernel: {}", found.as_str().trim()));
    }
    let parameter =
        pattern(r"[(,]\s*((?:\w+\s+)*[\w:]+(?:<[^;(){}]*>)?\s*(?:[*&]\s*\w+|\(&\s*\w+\)))\s*[\[,)]");
    for found in parameter.captures_iter(&header) {
        let declared = &found[1];
        let spaces = ["device", "constant", "threadgroup", "thread"];
        if declared.contains(' ')
            && !declared.split(|c: char| !c.is_alphanumeric()).any(|word| spaces.contains(&word))
        {
            complaints.push(format!("a pointer or reference without an address space: {declared}"));
        }
    }
    complaints.extend(recursive(&header).into_iter().map(|name| format!("{name} calls itself")));
    complaints
}

/// Names of functions whose body names them again.
fn recursive(header: &str) -> Vec<String> {
    let function = pattern(r"\b(\w+)\s*\([^;{}()]*(?:\([^()]*\)[^;{}()]*)*\)\s*(?:const\s*)?\{");
    let mut names = Vec::new();
    for found in function.captures_iter(header) {
        let (Some(whole), Some(name)) = (found.get(0), found.get(1)) else { continue };
        if matches!(name.as_str(), "if" | "for" | "while" | "switch") {
            continue;
        }
        let body = balanced(&header[whole.end()..]);
        let call = pattern(&format!(r"(?:^|[^.\w:]){}\s*(?:<[^;()]*>)?\s*\(", name.as_str()));
        if call.is_match(body) {
            names.push(name.as_str().to_owned());
        }
    }
    names
}

/// What stands before the brace that closes an already open one.
fn balanced(text: &str) -> &str {
    let mut depth = 1;
    for (index, byte) in text.bytes().enumerate() {
        depth += match byte {
            b'{' => 1,
            b'}' => -1,
            _ => 0,
        };
        if depth == 0 {
            return &text[..index];
        }
    }
    text
}
