//! Files of checksums.

use std::{fs, ops::ControlFlow, sync::Arc};

use streamed_experts::{Checksummed, ExpertChecksums, VerifyOptions, open_source, verify};

use super::folder;
use crate::{fixture, memory::at_most, read};

/// A file of checksums, put beside a source if it can be read.
pub fn checksums(data: &[u8]) {
    let path = folder().join("checksums.json");
    fs::write(&path, data).expect("room");
    match at_most((1 << 20) + 64 * data.len(), || ExpertChecksums::read(&path)) {
        Ok(read) => {
            let source = Arc::from(open_source(fixture("gpt_oss-mxfp4")).expect("a fixture"));
            if let Ok(checked) = Checksummed::new(source, read) {
                super::check_source(&checked);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let source = open_source(fixture("gpt_oss-mxfp4")).expect("a fixture");
    let report =
        verify(&*source, &VerifyOptions::default(), |_| ControlFlow::Continue(())).expect("a sound fixture");
    let path = folder().join("seed.json");
    report.checksums.expect("checksums of all experts").write(&path).expect("room");
    vec![read(&path)]
}
