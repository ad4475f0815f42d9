//! Resharding: splits and merges of ranges while traffic flows (design 7). Pure; `node` carries the steps out.
//! [`driver`] has the steps of one operation, [`load`] measures ranges, [`decide`] says which to split or merge, and why;
//! [`follow`] what a node has to do about what others recorded.
//!
//! INV-RESHARD-1 children are opened only once the parents' ends are recorded; INV-RESHARD-2 a tail comes from a fence, or
//! from a complete drain, never from before it; INV-RESHARD-3 an operation that is given up leaves every range writable;
//! INV-RESHARD-5 a range is opened by the incarnation that its chain names.

pub mod decide;
#[cfg(test)]
mod decide_test;
pub mod driver;
pub mod follow;
pub mod load;
