//! The virtual log: a chain of loglets, one active, changed by compare-and-set (design 5, log-contracts 1.8).

pub mod chain;
