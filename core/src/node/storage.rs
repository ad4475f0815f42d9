//! The node's disks and memory as places for the leaves of drive trees.

use crate::drive::expr::PlaceError;
use crate::drive::merge::{quorum_agreed, stripe_window, striped_merge};
use crate::drive::spec::{DriveExpr, DriveSpec};
use crate::drive::{self, Absent, AdmitError, LogDrive, OpenError, Purpose, TailDesc, expr, narrow};
use crate::store::{DiskHealth, DiskStore, MemoryStore};
use crate::types::{Address, DiskId, LeafId, LogletId, NodeId};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Whether a leaf is the only place of its addresses.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Copies {
    One,
    Several,
}

/// A disk that this node has had, or that it was given, and that cannot be used in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AbsentDisk {
    /// Which; unknown where its superblock cannot be read and nobody noted where it was.
    pub(super) id: Option<DiskId>,
    /// Where it is or was last, where that is known.
    pub(super) dir: Option<PathBuf>,
    /// Why it cannot be used.
    pub(super) why: String,
    /// Its directory was given at the start.
    pub(super) given: bool,
}

impl std::fmt::Display for AbsentDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("disk")?;
        if let Some(id) = self.id {
            write!(f, " {id}")?;
        }
        if let Some(dir) = &self.dir {
            write!(f, " ({})", dir.display())?;
        }
        write!(f, " {}", self.why)
    }
}

/// All places of this node that can hold entries.
pub(super) struct Storage {
    node: NodeId,
    /// In the order of the data directories.
    disks: Vec<Arc<DiskStore>>,
    dirs: Vec<PathBuf>,
    memory: Arc<MemoryStore>,
    absent: Vec<AbsentDisk>,
    /// Loglets whose deletion this process has asked its disks for, and that stay tombstones for the sake of absent disks.
    discarded: Mutex<HashSet<LogletId>>,
}

impl Storage {
    /// `disks` and `dirs` go together.
    pub(super) fn new(
        node: NodeId,
        disks: Vec<Arc<DiskStore>>,
        dirs: Vec<PathBuf>,
        memory: Arc<MemoryStore>,
        absent: Vec<AbsentDisk>,
    ) -> Storage {
        Storage { node, disks, dirs, memory, absent, discarded: Mutex::default() }
    }

    pub(super) fn disks(&self) -> &[Arc<DiskStore>] {
        &self.disks
    }

    /// Where the disks are, in their order.
    pub(super) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Disks that cannot be used in this process.
    pub(super) fn absent(&self) -> &[AbsentDisk] {
        &self.absent
    }

    /// How many disks the node has, dead and absent ones too: what an expression may ask for.
    pub(super) fn known(&self) -> usize {
        self.disks.len() + self.absent.len()
    }

    fn known_ids(&self) -> BTreeSet<DiskId> {
        self.here().into_iter().chain(self.absent.iter().filter_map(|absent| absent.id)).collect()
    }

    /// Disks that can be read.
    pub(super) fn here(&self) -> BTreeSet<DiskId> {
        self.disks.iter().map(|disk| disk.disk_id()).collect()
    }

    /// Disks that take writes, full ones too.
    pub(super) fn live(&self) -> BTreeSet<DiskId> {
        self.disks.iter().filter(|disk| !is_dead(disk)).map(|disk| disk.disk_id()).collect()
    }

    /// A disk as messages name it: with its directory, and with why it cannot be used, if so.
    pub(super) fn named(&self, id: DiskId) -> String {
        if let Some((disk, dir)) = self.disks.iter().zip(&self.dirs).find(|(d, _)| d.disk_id() == id) {
            let named = format!("disk {id} ({})", dir.display());
            return match disk.health() {
                DiskHealth::Dead(why) => format!("{named} is dead: {why}"),
                DiskHealth::ReadOnly(why) => format!("{named} is only read: {why}"),
                DiskHealth::Live | DiskHealth::Full(_) => named,
            };
        }
        match self.absent.iter().find(|absent| absent.id == Some(id)) {
            Some(absent) => absent.to_string(),
            None => format!("disk {id} is not here: give its data directory and start again"),
        }
    }

    /// Builds a segment's drive tree over this node's leaves.
    pub(super) fn open(&self, loglet: LogletId, spec: &DriveSpec) -> Result<Arc<dyn LogDrive>, OpenError> {
        drive::build(spec, loglet, &mut |leaf, spec| self.leaf(leaf, spec))
    }

    /// As `open`, of a segment that is only read: where its disk is not here, whoever reads it is told so.
    pub(super) fn open_sealed(
        &self,
        loglet: LogletId,
        spec: &DriveSpec,
    ) -> Result<Arc<dyn LogDrive>, OpenError> {
        match self.open(loglet, spec) {
            Ok(drive) => Ok(drive),
            Err(bounds @ OpenError::Bounds(_)) => Err(bounds),
            Err(error) => Ok(Arc::new(Absent(error.to_string()))),
        }
    }

    fn leaf(&self, leaf: LeafId, spec: &DriveSpec) -> Result<Arc<dyn LogDrive>, OpenError> {
        match spec {
            DriveSpec::Memory { node } if *node == self.node => Ok(self.memory.drive(leaf)),
            DriveSpec::Disk { node, disk } if *node == self.node => {
                match self.disks.iter().find(|d| d.disk_id() == *disk) {
                    Some(store) => Ok(store.drive(leaf)),
                    None => Err(OpenError::Unavailable { leaf, why: self.named(*disk) }),
                }
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

    /// Where a segment of ours ends that cannot be fenced now and that nobody in this process writes: its end as a seal will find
    /// it, whenever that comes and whichever copies answer it, since all is durable and all copies hold the same.
    ///
    /// Errors: why only a seal tells.
    pub(super) fn still_end(
        &self,
        loglet: LogletId,
        spec: &DriveSpec,
        window: u32,
    ) -> Result<Address, String> {
        if let Some(lost) = self.lost(loglet, spec) {
            return Err(lost);
        }
        self.standing(loglet, spec, window, &mut 0).map(|tail| tail.contiguous())
    }

    /// `next`: number of the tree's next leaf.
    fn standing(
        &self,
        loglet: LogletId,
        spec: &DriveSpec,
        window: u32,
        next: &mut u16,
    ) -> Result<TailDesc, String> {
        match spec {
            DriveSpec::Memory { .. } => Err("what was in memory went with its process".to_owned()),
            DriveSpec::Disk { disk, .. } => {
                let leaf = LeafId { loglet, leaf: *next };
                *next += 1;
                let store = self.disks.iter().find(|d| d.disk_id() == *disk);
                let store = store.ok_or_else(|| self.named(*disk))?;
                if let Some(why) = store.unsure() {
                    return Err(why.to_owned());
                }
                store.drive(leaf).standing(window).map_err(|e| e.to_string())
            }
            DriveSpec::Striped { children } => {
                let each = stripe_window(window, children.len());
                let tails: Result<Vec<TailDesc>, String> =
                    children.iter().map(|child| self.standing(loglet, child, each, next)).collect();
                Ok(striped_merge(window, &tails?))
            }
            DriveSpec::Quorum { children, .. } => {
                let tails: Result<Vec<TailDesc>, String> =
                    children.iter().map(|child| self.standing(loglet, child, window, next)).collect();
                quorum_agreed(children.len(), &tails?).ok_or_else(|| {
                    "its copies differ: which records count is decided when it is sealed".to_owned()
                })
            }
        }
    }

    /// Places an expression on the disks that live; `seed` spreads segments over them. Where disks are dead or absent, a
    /// quorum is placed with the copies that have a disk, as long as they reach its write quorum (design 11). So it is where
    /// disks have no room for records: they are gone without, if that can be.
    ///
    /// Errors: the node has too few disks, or too few of them live.
    pub(super) fn place(&self, expression: &DriveExpr, seed: LogletId) -> Result<DriveSpec, PlaceError> {
        let (needed, have) = (expr::disks_needed(expression), self.known());
        if have < needed {
            return Err(PlaceError::TooFewDisks { expr: expression.to_string(), needed, have });
        }
        let live: Vec<DiskId> = self.live().into_iter().collect();
        let is_roomy = |id: &DiskId| self.disks.iter().any(|disk| disk.disk_id() == *id && disk.is_roomy());
        let roomy: Vec<DiskId> = live.iter().copied().filter(is_roomy).collect();
        let on_roomy = narrow::fitted(expression, roomy.len()).map(|fitted| (fitted, roomy));
        let on_live = || narrow::fitted(expression, live.len()).map(|fitted| (fitted, live.clone()));
        let Some((fitted, disks)) = on_roomy.or_else(on_live) else {
            return Err(PlaceError::TooFewLive {
                expr: expression.to_string(),
                least: narrow::disks_least(expression),
                live: live.len(),
                dead: self.dead_and_absent().join("; "),
            });
        };
        expr::place(&fitted, self.node, &disks, seed)
    }

    /// Whether the disks of a placed drive have room: of a quorum as many copies as it writes to.
    ///
    /// Errors: which has not, until space is freed.
    pub(super) fn takes(&self, spec: &DriveSpec, purpose: Purpose) -> Result<(), AdmitError> {
        match spec {
            DriveSpec::Memory { .. } => Ok(()),
            DriveSpec::Disk { disk, .. } => self.disk_takes(*disk, purpose),
            DriveSpec::Striped { children } => children.iter().try_for_each(|c| self.takes(c, purpose)),
            DriveSpec::Quorum { children, write } => {
                let refused: Vec<AdmitError> =
                    children.iter().filter_map(|child| self.takes(child, purpose).err()).collect();
                let spare = children.len().saturating_sub(usize::from(*write));
                refused.into_iter().nth(spare).map_or(Ok(()), Err)
            }
        }
    }

    /// A disk that is not here is not asked.
    fn disk_takes(&self, id: DiskId, purpose: Purpose) -> Result<(), AdmitError> {
        let disk = self.disks.iter().find(|disk| disk.disk_id() == id);
        disk.map_or(Ok(()), |disk| disk.admit(purpose))
    }

    /// Deletes what is stored of loglets that tombstones name, on the disks that are here. Answers those of which nothing is left
    /// anywhere, and will not be after a crash either.
    pub(super) async fn discard(&self, due: Vec<(LogletId, DriveSpec)>) -> Vec<LogletId> {
        let (live, known) = (self.live(), self.known_ids());
        // All are queued before the first is waited for: they share durable writes.
        let queued: Vec<_> = due
            .into_iter()
            .map(|(loglet, spec)| {
                let disks = narrow::disks_of(&spec);
                let whole = disks.iter().all(|disk| live.contains(disk) || !known.contains(disk));
                let answers = if self.discarded.lock().contains(&loglet) {
                    Vec::new()
                } else {
                    self.memory.discard(loglet);
                    let takes = self.disks.iter().filter(|disk| live.contains(&disk.disk_id()));
                    takes.map(|disk| disk.discard(loglet)).collect()
                };
                (loglet, whole, answers)
            })
            .collect();
        let mut gone = Vec::new();
        for (loglet, whole, answers) in queued {
            let mut durable = true;
            for answer in answers {
                durable &= matches!(answer.await, Ok(Ok(())));
            }
            if durable && whole {
                self.discarded.lock().remove(&loglet);
                gone.push(loglet);
            } else if durable {
                self.discarded.lock().insert(loglet);
            }
        }
        gone
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

    /// Disks that were given at the start and cannot be used or written, with the reason.
    pub(super) fn dead(&self) -> Vec<String> {
        let unusable = self.absent.iter().filter(|absent| absent.given).map(ToString::to_string);
        self.unwritable().into_iter().chain(unusable).collect()
    }

    /// All disks that cannot be written, those that were not given too.
    fn dead_and_absent(&self) -> Vec<String> {
        self.unwritable().into_iter().chain(self.absent.iter().map(ToString::to_string)).collect()
    }

    fn unwritable(&self) -> Vec<String> {
        self.disks
            .iter()
            .zip(&self.dirs)
            .filter_map(|(disk, dir)| {
                let named = format!("disk {} ({})", disk.disk_id(), dir.display());
                match disk.health() {
                    DiskHealth::Live => None,
                    DiskHealth::Full(why) => Some(format!("{named} is full: {why}")),
                    DiskHealth::ReadOnly(why) => Some(format!("{named} is only read: {why}")),
                    DiskHealth::Dead(why) => Some(format!("{named} is dead: {why}")),
                }
            })
            .collect()
    }
}

fn is_dead(disk: &DiskStore) -> bool {
    matches!(disk.health(), DiskHealth::Dead(_) | DiskHealth::ReadOnly(_))
}
