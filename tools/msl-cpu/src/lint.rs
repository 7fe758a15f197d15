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
    for (_, parameters, _) in functions(&header) {
        let unspaced = parameters.split(',').filter(|each| each.contains(['*', '&']) && !names_a_space(each));
        complaints.extend(
            unspaced.map(|each| format!("a pointer or reference into no address space: {}", each.trim())),
        );
    }
    complaints.extend(recursive(&header).into_iter().map(|name| format!("{name} calls itself")));
    complaints
}

fn names_a_space(parameter: &str) -> bool {
    let mut words = parameter.split(|c: char| !c.is_alphanumeric());
    words.any(|word| ["device", "constant", "threadgroup", "thread"].contains(&word))
}

/// Name, parameters and body of each function.
fn functions(header: &str) -> Vec<(&str, &str, &str)> {
    let function = pattern(r"\b(\w+)\s*\(([^;{}()]*(?:\([^()]*\)[^;{}()]*)*)\)\s*(?:const\s*)?\{");
    let mut found = Vec::new();
    for captures in function.captures_iter(header) {
        let [whole, name, parameters] = [0, 1, 2].map(|group| captures.get(group));
        let (Some(whole), Some(name), Some(parameters)) = (whole, name, parameters) else { continue };
        if !matches!(name.as_str(), "if" | "for" | "while" | "switch") {
            found.push((name.as_str(), parameters.as_str(), balanced(&header[whole.end()..])));
        }
    }
    found
}

/// Names of functions whose body names them again.
fn recursive(header: &str) -> Vec<&str> {
    let calls_itself = |(name, _, body): &(&str, &str, &str)| {
        pattern(&format!(r"(?:^|[^.\w:]){name}\s*(?:<[^;()]*>)?\s*\(")).is_match(body)
    };
    functions(header).into_iter().filter(calls_itself).map(|(name, _, _)| name).collect()
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
