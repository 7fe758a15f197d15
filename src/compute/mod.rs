//! Kernel families, and the scalar oracle that all of them are checked against.

pub mod oracle;
