//! What residency costs and keeps: the policies' work, a budget under pressure, reading ahead that is wrong.

#![allow(unreachable_pub, reason = "a bench is a program; nothing of it is reached from outside")]

mod forwards;
mod governor;
mod policies;
mod prefetch;
#[path = "../common/records.rs"]
mod records;

fn main() {
    policies::print();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = forwards::source(folder.path());
    governor::print(&source);
    prefetch::print(&source);
}
