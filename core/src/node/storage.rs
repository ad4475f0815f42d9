//! The node's disks and memory as places for the leaves of drive trees.

use crate::drive::spec::{DriveExpr, DriveSpec};
use crate::drive::{self, LogDrive, OpenError, expr};
use crate::store::{DiskHealth, DiskStore, MemoryStore};
use crate::types::{DiskId, LeafId, LogletId, NodeId};
use std::path::PathBuf;
use std::sync::Arc;

/// Whether a leaf is the only place of its addresses.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Copies {
    One,
    Several,
}

/// All places of this node that can hold entries.
pub(super) struct Storage {
    node: NodeId,
    /// In the order of the data directories.
    disks: Vec<Arc<DiskStore>>,
    dirs: Vec<PathBuf>,
    memory: Arc<MemoryStore>,
}

impl Storage {
    pub(super) fn new(
        node: NodeId,
        disks: Vec<Arc<DiskStore>>,
        dirs: Vec<PathBuf>,
        memory: Arc<MemoryStore>,
    ) -> Storage {
        Storage { node, disks, dirs, memory }
    }

    pub(super) fn disks(&self) -> &[Arc<DiskStore>] {
        &self.disks
    }

    /// Where the disks are, in their order.
    pub(super) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Builds a segment's drive tree over this node's leaves.
    pub(super) fn open(&self, loglet: LogletId, spec: &DriveSpec) -> Result<Arc<dyn LogDrive>, OpenError> {
        drive::build(spec, loglet, &mut |leaf, spec| self.leaf(leaf, spec))
    }

    fn leaf(&self, leaf: LeafId, spec: &DriveSpec) -> Result<Arc<dyn LogDrive>, OpenError> {
        match spec {
            DriveSpec::Memory { node } if *node == self.node => Ok(self.memory.drive(leaf)),
            DriveSpec::Disk { node, disk } if *node == self.node => {
                let store = self.disks.iter().find(|d| d.disk_id() == *disk);
                let store = store.ok_or(OpenError::UnknownDisk { leaf, disk: *disk })?;
                Ok(store.drive(leaf))
            }
            other => {
                Err(OpenError::Unavailable { leaf, why: format!("{other:?} is not a place of this node") })
            }
        }
    }

    /// Why a segment of ours is known to have lost records that no copy makes good: a leaf without a quorum above it lacks
    /// addresses below others that it has.
    pub(super) fn lost(&self, loglet: LogletId, spec: &DriveSpec) -> Option<String> {
        self.lost_leaf(loglet, spec, &mut 0, Copies::One)
    }

    fn lost_leaf(
        &self,
        loglet: LogletId,
        spec: &DriveSpec,
        next: &mut u16,
        copies: Copies,
    ) -> Option<String> {
        match spec {
            DriveSpec::Memory { .. } | DriveSpec::Disk { .. } => {
                let leaf = LeafId { loglet, leaf: *next };
                *next += 1;
                let DriveSpec::Disk { disk, .. } = spec else { return None };
                let store = self.disks.iter().find(|d| d.disk_id() == *disk)?;
                let (from, to) = store.drive(leaf).first_missing().filter(|_| copies == Copies::One)?;
                Some(format!(
                    "segment {leaf} on disk {disk}: addresses {from} to {} are missing although later ones are there; \
                     an extent file is damaged or gone: bring it back and start again",
                    to - 1
                ))
            }
            DriveSpec::Striped { children } => {
                let lost: Vec<String> =
                    children.iter().filter_map(|c| self.lost_leaf(loglet, c, next, copies)).collect();
                lost.into_iter().next()
            }
            DriveSpec::Quorum { children, .. } => {
                children.iter().for_each(|c| drop(self.lost_leaf(loglet, c, next, Copies::Several)));
                None
            }
        }
    }

    /// Places an expression on the disks that live; `seed` spreads segments over them.
    pub(super) fn place(
        &self,
        expression: &DriveExpr,
        seed: LogletId,
    ) -> Result<DriveSpec, expr::PlaceError> {
        let live: Vec<DiskId> = self.disks.iter().filter(|d| !is_dead(d)).map(|d| d.disk_id()).collect();
        expr::place(expression, self.node, &live, seed)
    }

    /// Deletes what is stored of loglets that a tombstone names.
    pub(super) fn discard(&self, loglet: LogletId) {
        self.memory.discard(loglet);
        for disk in &self.disks {
            disk.discard(loglet);
        }
    }

    /// What is known to be damaged: disk, leaf and what.
    pub(super) fn damage(&self) -> Vec<(String, Option<LeafId>, String)> {
        let named =
            |disk: &DiskStore, dir: &std::path::Path| format!("disk {} ({})", disk.disk_id(), dir.display());
        let each = self.disks.iter().zip(&self.dirs).flat_map(|(disk, dir)| {
            let found = disk.damage().into_iter();
            found.map(move |(leaf, _, what)| (named(disk, dir), leaf, what)).collect::<Vec<_>>()
        });
        each.collect()
    }

    /// Whether no disk is dead.
    pub(super) fn all_live(&self) -> bool {
        !self.disks.iter().any(|disk| is_dead(disk))
    }

    /// Disks that are dead, with the reason.
    pub(super) fn dead(&self) -> Vec<String> {
        self.disks
            .iter()
            .zip(&self.dirs)
            .filter_map(|(disk, dir)| {
                let named = format!("disk {} ({})", disk.disk_id(), dir.display());
                match disk.health() {
                    DiskHealth::Live => None,
                    DiskHealth::Full(why) => Some(format!("{named} is full: {why}")),
                    DiskHealth::Dead(why) => Some(format!("{named} is dead: {why}")),
                }
            })
            .collect()
    }
}

fn is_dead(disk: &DiskStore) -> bool {
    matches!(disk.health(), DiskHealth::Dead(_))
}
