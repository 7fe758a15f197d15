//! Every interleaving of small scenes, by loom: `tools/model-check.sh`. A reader thread, callers, and what they contend for.
//!
//! A scene that deadlocks, loses a wake-up, leases a slot while it is filled (the latches see it) or breaks the table
//! fails. Bytes are compared with the expert's own.

mod scenes;
mod source;
