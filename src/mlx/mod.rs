//! (see the crate docs)
