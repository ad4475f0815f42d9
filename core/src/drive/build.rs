//! From a placed spec to a tree of drives.

use crate::drive::LogDrive;
use crate::drive::quorum::Quorum;
use crate::drive::spec::DriveSpec;
use crate::drive::striped::Striped;
use crate::testing::{Mutant, broken};
use crate::types::{DiskId, LeafId, LogletId};
use std::sync::Arc;
use std::time::Duration;

/// How long a quorum's fence waits for further copies.
const FENCE_GRACE: Duration = Duration::from_millis(50);

/// Why a loglet's drive cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No disk of this identity is here; an emptied disk is another one (B9). Until it is brought back.
    #[error("leaf {leaf}: disk {disk} is not here")]
    UnknownDisk {
        /// The leaf.
        leaf: LeafId,
        /// The disk that its spec names.
        disk: DiskId,
    },
    /// The disk or the memory that held it is lost for this process.
    #[error("leaf {leaf}: {why}")]
    Unavailable {
        /// The leaf.
        leaf: LeafId,
        /// Why.
        why: String,
    },
    /// No copy of a quorum could be opened.
    #[error("no copy can be opened: {0}")]
    NoCopy(String),
    /// A spec that breaks a bound: written by another version, or damaged.
    #[error("drive spec out of bounds: {0}")]
    Bounds(String),
}

/// Opens one leaf, which its spec names.
pub type OpenLeaf<'a> = dyn FnMut(LeafId, &DriveSpec) -> Result<Arc<dyn LogDrive>, OpenError> + 'a;

/// Whether the disk that was found is the one that a leaf's spec names. Asked before anything is read from it or written to
/// it: an emptied disk that answered under its old name would have forgotten its entries *and its fence* (B9).
///
/// Errors: [`OpenError::UnknownDisk`], until the right one is back.
pub fn same_disk(leaf: LeafId, named: DiskId, found: DiskId) -> Result<(), OpenError> {
    if named == found || broken(Mutant::WipedLeafAnswers) {
        return Ok(());
    }
    Err(OpenError::UnknownDisk { leaf, disk: named })
}

/// Builds a loglet's drive. Leaves are numbered in the tree's order, `resolve` opens one. A quorum opens with the copies
/// that can be opened; everything else needs all of its children.
///
/// Errors: the first leaf that is needed and not there, until it comes back.
pub fn build(
    spec: &DriveSpec,
    loglet: LogletId,
    resolve: &mut OpenLeaf<'_>,
) -> Result<Arc<dyn LogDrive>, OpenError> {
    Builder { loglet, next: 0, resolve }.build(spec)
}

struct Builder<'a, 'b> {
    loglet: LogletId,
    next: u16,
    resolve: &'a mut OpenLeaf<'b>,
}

impl Builder<'_, '_> {
    fn build(&mut self, spec: &DriveSpec) -> Result<Arc<dyn LogDrive>, OpenError> {
        match spec {
            DriveSpec::Memory { .. } | DriveSpec::Disk { .. } => {
                let leaf = LeafId { loglet: self.loglet, leaf: self.next };
                self.next =
                    self.next.checked_add(1).ok_or_else(|| OpenError::Bounds("too many leaves".into()))?;
                (self.resolve)(leaf, spec)
            }
            DriveSpec::Striped { children } => {
                // All are visited, also behind one that fails: leaves keep their numbers.
                let children: Vec<_> = children.iter().map(|child| self.build(child)).collect();
                let children: Vec<_> = children.into_iter().collect::<Result<_, _>>()?;
                if children.is_empty() {
                    return Err(OpenError::Bounds("a striped drive without children".into()));
                }
                Ok(Arc::new(Striped::new(children)))
            }
            DriveSpec::Quorum { children, write } => {
                let write = usize::from(*write);
                if write < 1 || write > children.len() {
                    return Err(OpenError::Bounds(format!("write={write} of {} copies", children.len())));
                }
                let copies: Vec<_> = children.iter().map(|child| self.build(child)).collect();
                if let Some(bounds) = copies.iter().find_map(|c| match c {
                    Err(error @ OpenError::Bounds(_)) => Some(error.clone()),
                    _ => None,
                }) {
                    return Err(bounds);
                }
                let copies: Vec<_> = copies.into_iter().map(|c| c.map_err(|e| e.to_string())).collect();
                if copies.iter().all(Result::is_err) {
                    let why: Vec<_> = copies.into_iter().filter_map(Result::err).collect();
                    return Err(OpenError::NoCopy(why.join("; ")));
                }
                Ok(Arc::new(Quorum::new(copies, write).with_grace(FENCE_GRACE)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::contract::{Subject, run_all};
    use crate::testing::leaf::{LOGLET, Leaf};
    use crate::types::NodeId;

    fn quorum(children: Vec<DriveSpec>) -> DriveSpec {
        DriveSpec::Quorum { children, write: 2 }
    }

    const MEMORY: DriveSpec = DriveSpec::Memory { node: NodeId(1) };

    #[test]
    fn leaves_are_numbered_in_the_trees_order_and_a_quorum_opens_without_a_lost_one() {
        let spec = DriveSpec::Striped {
            children: vec![quorum(vec![MEMORY, MEMORY, MEMORY]), quorum(vec![MEMORY, MEMORY])],
        };
        let mut opened = Vec::new();
        run_all("built with one leaf lost", || {
            opened.clear();
            let drive = build(&spec, LOGLET, &mut |leaf, _| {
                opened.push(leaf.leaf);
                match leaf.leaf {
                    1 => Err(OpenError::Unavailable { leaf, why: "lost".into() }),
                    _ => Ok(Leaf::threaded()),
                }
            });
            Subject::new(drive.unwrap())
        });
        assert_eq!(opened, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_stripe_without_its_leaf_and_a_quorum_without_any_do_not_open() {
        let lost = |leaf, _: &DriveSpec| Err(OpenError::Unavailable { leaf, why: "lost".into() });
        let open = |spec: &DriveSpec| build(spec, LOGLET, &mut lost.clone()).map(|_| ()).unwrap_err();
        let stripes = DriveSpec::Striped { children: vec![MEMORY, MEMORY] };
        assert_eq!(open(&stripes).to_string(), "leaf l7.0: lost");
        assert_eq!(
            open(&quorum(vec![MEMORY, MEMORY])).to_string(),
            "no copy can be opened: leaf l7.0: lost; leaf l7.1: lost"
        );
        assert_eq!(open(&quorum(vec![MEMORY])).to_string(), "drive spec out of bounds: write=2 of 1 copies");
    }
}
