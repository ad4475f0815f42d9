//! Testing of the decisions in `drive`, `loglet` and `virtual_log`: switches that break one rule each.
//!
//! A checker is trusted only as long as it finds what is broken on purpose. [`broken`] is false, as a constant, outside
//! of tests.

pub(crate) mod mutant;

pub(crate) use mutant::{Mutant, broken};
