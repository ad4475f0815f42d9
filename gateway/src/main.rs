//! The `rangeway` program.

fn main() {}
