//! Testing of the decisions in `drive`, `loglet` and `virtual_log`: switches that break one rule each.
//!
//! A checker is trusted only as long as it finds what is broken on purpose. [`broken`] is false, as a constant, outside
//! of tests.

#[cfg(test)]
pub(crate) mod batch;
#[cfg(test)]
mod explorer;
#[cfg(test)]
pub(crate) mod fuzz;
#[cfg(test)]
pub(crate) mod leaf;
#[cfg(test)]
pub(crate) mod lines;
pub(crate) mod mutant;
#[cfg(test)]
mod reshard_explorer;
#[cfg(test)]
pub(crate) mod rng;
#[cfg(test)]
pub(crate) mod write_only;

pub(crate) use mutant::{Mutant, broken};
