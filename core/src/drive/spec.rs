//! Drive expressions, as a person writes them, and placed specs, as chain entries record them (design 16).

use crate::types::{DiskId, NodeId};
use serde::{Deserialize, Serialize};

/// A drive expression: `memory`, `disk`, `quorum(3, write=2)`, `striped(4, disk)`, nested at will.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriveExpr {
    /// Kept in memory only: lost with the process.
    Memory,
    /// One disk.
    Disk,
    /// Every entry to all children, durable once `write` of them have it.
    Quorum {
        /// The copies.
        children: Vec<DriveExpr>,
        /// How many must hold an entry before it counts.
        write: u8,
    },
    /// Address `a` to child `a mod n`.
    Striped {
        /// The stripes.
        children: Vec<DriveExpr>,
    },
}

/// A drive expression with its leaves placed; what a chain entry holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriveSpec {
    /// Memory of a node, for one of its generations.
    Memory {
        /// The node.
        node: NodeId,
    },
    /// One disk of a node.
    Disk {
        /// The node.
        node: NodeId,
        /// The disk.
        disk: DiskId,
    },
    /// See [`DriveExpr::Quorum`].
    Quorum {
        /// The copies.
        children: Vec<DriveSpec>,
        /// How many must hold an entry before it counts.
        write: u8,
    },
    /// See [`DriveExpr::Striped`].
    Striped {
        /// The stripes.
        children: Vec<DriveSpec>,
    },
}
