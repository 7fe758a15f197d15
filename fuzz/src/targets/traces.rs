//! Routing traces.

use std::fs;

use streamed_experts::Trace;

use crate::{memory::at_most, project, read};

/// Seeds are cut to so many lines, so that mutations reach everything.
const SEED_LINES: usize = 12;

/// A trace's text.
pub fn traces(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match at_most((1 << 20) + 64 * data.len(), || Trace::from_text(&text)) {
        Ok(trace) => {
            assert_eq!(trace.requests().len(), trace.len());
            let mut accesses = 0;
            for request in trace.requests() {
                let layer =
                    trace.layers().iter().find(|layer| layer.layer == request.layer).expect("its layer");
                assert!(request.experts.iter().all(|expert| expert.0 < layer.experts));
                assert!(request.experts.len() <= trace.largest_request());
                accesses += request.experts.len();
            }
            assert_eq!(accesses, trace.accesses());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for entry in fs::read_dir(project().join("examples/data")).expect("the traces") {
        let path = entry.expect("the traces").path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let bytes = read(&path);
            let lines: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').take(SEED_LINES).collect();
            seeds.push(lines.concat());
        }
    }
    seeds.sort();
    seeds
}
