//! Mixture-of-experts layers larger than memory.
#![deny(unsafe_code)]
