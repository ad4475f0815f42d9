//! Opening a data directory: lock, superblock, extents, and the state of every leaf that they hold.

use crate::drive::ReadError;
use crate::store::chunk::{self, ChunkHeader};
use crate::store::directory::{self, Directories, DirectoryHeader, Summary};
use crate::store::extent::{self, CHUNK_KEY, EXTENTS, Extent};
use crate::store::file::{Aligned, Writer};
use crate::store::format::{BLOCK, ExtentHeader, GROUP_HEADER_LEN, GroupHeader, HeaderBlock, align_up};
use crate::store::format::{RecordHeader, RecordKind};
use crate::store::index::IndexEntry;
use crate::store::inventory::{self, Held, Inventory};
use crate::store::journal::Open;
use crate::store::keeper::Closed;
use crate::store::leaf::{Index, LeafState};
use crate::store::leaf_table;
use crate::store::recovery::{Damage, Found, FoundGroup, RecoveryReport, parse, read_up_to, scan};
use crate::store::room::is_full;
use crate::store::superblock::OpenError;
use crate::store::{Inner, Spare};
use crate::types::{LeafId, LogletId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Extent files of a data directory, sorted by name.
pub(crate) fn extent_files(dir: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let extents = dir.join(EXTENTS);
    let mut files = Vec::new();
    for item in std::fs::read_dir(&extents).map_err(OpenError::io(&extents))? {
        let path = item.map_err(OpenError::io(&extents))?.path();
        if extent::file_number(&path).is_some() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

struct Live {
    header: ExtentHeader,
    extent: Arc<Extent>,
    /// The file is shorter than its header says.
    cut: bool,
}

pub(crate) struct Recovered {
    pub(crate) report: RecoveryReport,
    pub(crate) open: Option<Open>,
    pub(crate) next_group: u64,
    /// Extents that take no more writes and have no directory.
    pub(crate) closed: Vec<Closed>,
    pub(crate) table_sequence: u64,
    /// Extents and chunks in whose place a chunk stands; to be recycled.
    pub(crate) stale: Vec<Arc<Extent>>,
}

/// Addresses that were written, are not trimmed, are not found, and may have stood in what is lost, as first and one above the last.
///
/// `lost`: extent numbers, first and last. What lies elsewhere and is not found is dead: its extent was recycled.
fn missing(state: &LeafState, directories: &Directories, lost: &[(u64, u64)]) -> BTreeMap<u64, u64> {
    // Start, end, and of what was found the numbers of the extents that it stands in.
    type Run = (u64, u64, Option<(u64, u64)>);
    let mut found: Vec<Run> = state.registers.holes().map(|(start, end)| (start, end, None)).collect();
    for (extent, index) in &state.extents {
        let place = Some((extent.first, extent.number));
        match index {
            Index::Memory(index) => {
                found.extend(index.entries().iter().map(|e| (e.address, e.address + 1, place)));
            }
            Index::Disk(s) if s.is_contiguous() => {
                found.push((s.addresses.0, s.addresses.1.saturating_add(1), place));
            }
            Index::Disk(s) => {
                let entries = (0..s.entries).filter_map(|i| directories.entry(extent, s, i).ok());
                found.extend(entries.map(|e| (e.address, e.address.saturating_add(1), place)));
            }
        }
    }
    found.sort_unstable();
    let may_be_lost = |from: u64, to: u64| lost.iter().any(|(first, last)| from <= *last && *first <= to);
    let mut missing = BTreeMap::new();
    let (mut next, mut after) = (state.registers.trimmed(), 0);
    for (start, end, place) in found {
        if start > next && may_be_lost(after, place.map_or(u64::MAX, |(_, last)| last)) {
            missing.insert(next, start);
        }
        if end > next {
            after = place.map_or(after, |(first, _)| first);
            next = end;
        }
    }
    if next < state.registers.end() && may_be_lost(after, u64::MAX) {
        missing.insert(next, state.registers.end());
    }
    missing
}

struct Recovery<'a> {
    inner: &'a Inner,
    report: RecoveryReport,
    /// The last group that names a leaf: what was lost later may be its.
    last_group: HashMap<LeafId, u64>,
    lost: Vec<(u64, String)>,
    /// Extents, as first and last number, of which entries of any leaf may be missing without a trace, and why.
    lost_extents: Vec<((u64, u64), String)>,
    /// Chunks of which something is missing or unusable; they stay in the inventory.
    lost_chunks: Vec<Held>,
    /// What ought to be there.
    inventory: Option<Inventory>,
    /// Chunk files without a directory.
    bare: Vec<(u64, PathBuf)>,
    /// Sequences of chunks that are there, or whose loss is reported.
    seen_chunks: HashSet<u64>,
    stale: Vec<Arc<Extent>>,
    /// Of each chunk: its number and its first group.
    chunks: Vec<(u64, u64)>,
    /// Extents in whose place chunks stand.
    covered: Vec<(u64, u64)>,
}

/// Rebuilds `inner`'s leaves from the extents. Copies the last, unproven group to a fresh extent.
///
/// Errors: see [`OpenError`]. Damage is in the report, not an error.
pub(crate) fn recover(inner: &Inner) -> Result<Recovered, OpenError> {
    let mut r = Recovery {
        inner,
        report: RecoveryReport::default(),
        last_group: HashMap::new(),
        lost: Vec::new(),
        lost_extents: Vec::new(),
        lost_chunks: Vec::new(),
        inventory: None,
        bare: Vec::new(),
        seen_chunks: HashSet::new(),
        stale: Vec::new(),
        chunks: Vec::new(),
        covered: Vec::new(),
    };
    let table_sequence = r.load_leaf_table()?;
    r.load_inventory()?;
    let used = r.load_chunks()?.max(inner.extents.lock().next_group);
    let mut next_group = used;
    let live = r.classify()?;
    r.judge_bare_chunks(&live)?;
    r.report_absent(&live);
    let mut last: Option<FoundGroup> = None;
    let (mut closed, mut goes_on) = (Vec::new(), false);
    for (at, this) in live.iter().enumerate() {
        let next = live.get(at + 1).map(|next| next.header.first_group);
        let chunk = r.chunks.iter().filter(|(n, _)| *n > this.header.number).map(|(_, group)| *group).min();
        let returned = inner.extents.lock().returned.contains_key(&this.header.number);
        // Groups that were written while it was missing took numbers of its own: they bound nothing in it.
        let bound = next.into_iter().chain(chunk).min().filter(|_| !returned);
        if let Some(end) = r.use_directory(this) {
            (next_group, last) = (end, None);
            continue;
        }
        let mut found = r.scan(this, bound)?;
        if returned
            && at + 1 < live.len()
            && let Some(group) = found.last.take()
        {
            // It is not the newest: nothing is written behind it, its last group counts where it stands.
            r.keep_last(&group, &this.extent);
        }
        next_group = found.next_group;
        // A last group that nothing proves is written again: what stands here ends before it.
        let (end_group, data_end) =
            found.last.as_ref().map_or((next_group, found.end), |g| (g.number, g.position));
        let (extent, first_group) = (this.extent.clone(), this.header.first_group);
        // An extent with damage stays as it is, without a directory: a directory would not know what is missing.
        if this.cut {
            let what = format!("{}: file cut; records at its end may be lost", this.extent.path.display());
            // The first group of the next extent may be the copy of the last one that was left of this.
            r.lost.push((bound.map_or(u64::MAX, |b| b + 1), what));
        } else if found.damage.is_empty() {
            closed.push(Closed { extent, first_group, end_group, data_end });
        }
        // What follows may be written behind it.
        goes_on = !this.cut && found.damage.is_empty();
        last = found.last;
    }
    if let Some(this) = live.last().filter(|_| last.is_some() && goes_on && !inner.is_dead()) {
        // Its last group may need room elsewhere.
        let end = last.as_ref().map_or(u64::MAX, |group| group.position + group.span());
        inner.give_back(&this.extent, end);
    }
    // The newest extents may have become a chunk, or be recycled.
    next_group = next_group.max(used);
    let mut open = None;
    if let Some(group) = last {
        // The next extent begins with this number: the copy here, good or torn, does not count any more.
        next_group = group.number;
        if group.good > 0 {
            let copied = if inner.is_dead() { Ok(None) } else { r.copy_last(&group).map(Some) };
            let written = match (copied, live.last().filter(|_| goes_on)) {
                (Err(e), Some(this)) if is_full(&e) => {
                    r.write_again(&group, this).map(Some).inspect(|_| drop(closed.pop()))
                }
                (copied, _) => copied,
            };
            match written {
                Ok(Some(copied)) => {
                    open = Some(copied);
                    next_group += 1;
                }
                Err(e) if !is_full(&e) => return Err(e),
                // Readable where it stands; the next start copies it. Nothing may be written behind it meanwhile.
                full => {
                    if goes_on {
                        closed.pop();
                    }
                    let again = live.last().filter(|_| goes_on && full.is_ok());
                    let is_sure = again.is_some_and(|this| r.make_sure(&group, this));
                    next_group += u64::from(is_sure);
                    if let Err(e) = full {
                        inner.only_read(format!(
                            "no space is left to go on after a crash ({e}): free some and start the node again"
                        ));
                    }
                    if let Some(this) = live.last().filter(|_| !is_sure) {
                        inner.not_sure();
                        r.keep_last(&group, &this.extent);
                    }
                }
            }
        }
    }
    inner.extents.lock().next_group = next_group;
    r.mark_suspects();
    Ok(Recovered { report: r.report, open, next_group, closed, table_sequence, stale: r.stale })
}

impl Recovery<'_> {
    fn classify(&mut self) -> Result<Vec<Live>, OpenError> {
        let mut live: Vec<Live> = Vec::new();
        for path in extent_files(&self.inner.dir)? {
            let file = File::open(&path).map_err(OpenError::io(&path))?;
            let len = file.metadata().map_err(OpenError::io(&path))?.len();
            let mut block = [0; BLOCK];
            read_up_to(&file, &mut block, 0).map_err(OpenError::io(&path))?;
            let number = extent::file_number(&path).unwrap_or_default();
            let mut extents = self.inner.extents.lock();
            extents.next_file = extents.next_file.max(number + 1);
            drop(extents);
            match ExtentHeader::read(&block) {
                HeaderBlock::Newer(got) => {
                    let expected = u32::from(crate::store::format::VERSION);
                    return Err(OpenError::Newer { file: path, got: u32::from(got), expected });
                }
                // Whether it was ever written shows nowhere; most were.
                HeaderBlock::Spare => {
                    self.inner.extents.lock().spares.push(Spare { path, len, written: true })
                }
                HeaderBlock::Damaged => {
                    self.damage(&path, "extent header damaged; the file is left alone".into())
                }
                HeaderBlock::Live { header, .. } if header.disk != self.inner.superblock.disk => {
                    self.damage(&path, format!("belongs to disk {}; the file is left alone", header.disk));
                }
                HeaderBlock::Live { header, damaged_copy } => {
                    if damaged_copy {
                        self.damage(&path, "one of two copies of the extent header is damaged".into());
                    }
                    if len < header.len {
                        self.damage(&path, format!("file cut: {len} bytes, expected {}", header.len));
                    }
                    let extent = Extent::new(header.number, path, file, header.len);
                    if chunk::is_covered((header.number, header.number), &self.covered) {
                        self.stale.push(Arc::new(extent));
                        continue;
                    }
                    live.push(Live { header, extent: Arc::new(extent), cut: len < header.len });
                }
            }
        }
        live.sort_by_key(|l| l.header.number);
        let mut extents = self.inner.extents.lock();
        for l in &live {
            extents.next_number = extents.next_number.max(l.header.number + 1);
            extents.live.insert(l.header.number, l.extent.clone());
        }
        self.report.extents = live.len() as u64;
        Ok(live)
    }

    fn damage(&mut self, file: &Path, what: String) {
        let file = file.to_owned();
        self.report.damage.push(Damage { file, position: 0, segment: None, address: None, what });
    }

    /// What recycled extents left behind.
    fn load_leaf_table(&mut self) -> Result<u64, OpenError> {
        let dir = &self.inner.dir;
        let loaded = leaf_table::load(dir, self.inner.superblock.disk).map_err(OpenError::io(dir))?;
        let path = dir.join(leaf_table::FILES[0]);
        for name in &loaded.damaged {
            let what = "leaf table damaged; its other copy is used".to_owned();
            self.damage(&dir.join(name), what);
        }
        let Some(table) = loaded.table else {
            return match loaded.damaged.is_empty() {
                true => Ok(0),
                false => Err(OpenError::Damaged {
                    file: path,
                    what: "leaf table damaged in both copies: fences and trims may be lost".into(),
                }),
            };
        };
        let mut extents = self.inner.extents.lock();
        extents.next_number = table.next_extent.min(1 << 62);
        extents.next_group = table.next_group.min(1 << 62);
        drop(extents);
        for (id, registers) in table.leaves {
            self.inner.leaf(id).state.write().registers = registers;
        }
        self.inner.forget_all(table.discarded);
        Ok(table.sequence)
    }

    /// Takes the chunks that count, the newest first; answers one above the last group that they stand for.
    fn load_chunks(&mut self) -> Result<u64, OpenError> {
        let mut next_group = 1;
        let dir = self.inner.dir.clone();
        for (sequence, path) in chunk::files(&dir).map_err(OpenError::io(&dir.join(chunk::CHUNKS)))? {
            let mut extents = self.inner.extents.lock();
            extents.next_chunk = extents.next_chunk.max(sequence.saturating_add(1));
            drop(extents);
            if !directory::path_of(&path).exists() {
                self.bare.push((sequence, path));
                continue;
            }
            self.seen_chunks.insert(sequence);
            let Some((header, leaves)) = self.chunk_directory(sequence, &path) else {
                self.keep_clear(&path)?;
                continue;
            };
            let Some(covers) = header.covers else { continue };
            if !path.exists() {
                self.damage(&path, "missing although its directory is there".into());
                self.lose_chunk(sequence, covers, format!("{}: missing", path.display()));
                continue;
            }
            let file = File::open(&path).map_err(OpenError::io(&path))?;
            let len = file.metadata().map_err(OpenError::io(&path))?.len();
            let mut block = [0; BLOCK];
            read_up_to(&file, &mut block, 0).map_err(OpenError::io(&path))?;
            let (disk, data_end) = (self.inner.superblock.disk, header.data_end);
            let expected = ChunkHeader { disk, sequence, covers, data_end };
            if block != expected.encode() {
                self.damage(&path, "chunk header damaged; its directory is used".into());
            }
            if len < data_end {
                self.damage(&path, format!("file cut: {len} bytes, expected {data_end}"));
            }
            let chunk = Arc::new(Extent::chunk(sequence, covers, path.clone(), file, len));
            let mut extents = self.inner.extents.lock();
            extents.next_number = extents.next_number.max(covers.1.saturating_add(1));
            drop(extents);
            next_group = next_group.max(header.end_group);
            if chunk::is_covered(covers, &self.covered) {
                self.stale.push(chunk);
                continue;
            }
            self.covered.push(covers);
            self.chunks.push((chunk.number, header.first_group));
            self.report.chunks += 1;
            self.take_directory(&chunk, header, leaves);
            self.inner.extents.lock().chunks.insert(sequence, chunk);
        }
        Ok(next_group)
    }

    fn load_inventory(&mut self) -> Result<(), OpenError> {
        let dir = &self.inner.dir;
        let path = dir.join(inventory::FILE);
        match inventory::load(dir, self.inner.superblock.disk).map_err(OpenError::io(&path))? {
            inventory::Loaded::Whole(all) => self.inventory = Some(all),
            inventory::Loaded::Missing => {}
            inventory::Loaded::Damaged => {
                self.damage(
                    &path,
                    "inventory damaged: whether an extent or a chunk is missing is not known".into(),
                );
            }
        }
        Ok(())
    }

    /// The extents in whose place a chunk without a usable directory stands.
    fn covers_of(&self, sequence: u64, path: &Path) -> Option<(u64, u64)> {
        let held = self.inventory.iter().flat_map(|all| &all.chunks).find(|held| held.file == sequence);
        let block = || {
            let mut block = [0; BLOCK];
            read_up_to(&File::open(path).ok()?, &mut block, 0).ok()?;
            chunk::header_of(&block)
        };
        held.map(|held| held.covers).or_else(|| block().map(|header| header.covers))
    }

    fn lose_chunk(&mut self, sequence: u64, covers: (u64, u64), why: String) {
        let named = self.inventory.iter().flat_map(|all| &all.chunks).find(|held| held.file == sequence);
        let below = named.map_or(LogletId(0), |held| held.below);
        self.lost_chunks.push(Held { covers, file: sequence, below });
        self.lost_extents.push((covers, why));
    }

    /// Deletes chunks that never counted, whose extents are all there, and those that count no more. The directory of any other is lost.
    fn judge_bare_chunks(&mut self, live: &[Live]) -> Result<(), OpenError> {
        for (sequence, path) in std::mem::take(&mut self.bare) {
            let covers = self.covers_of(sequence, &path);
            let inside = |held: &&Held| covers.is_some_and(|c| chunk::is_covered(held.covers, &[c]));
            let gone = |held: &Held| !live.iter().any(|l| l.header.number == held.covers.1);
            let counted = self.inventory.as_ref().is_some_and(|all| {
                all.chunks.iter().any(|held| held.file == sequence)
                    || all.extents.iter().filter(inside).any(gone)
            });
            let covers = covers.unwrap_or((0, u64::MAX));
            if !counted || chunk::is_covered(covers, &self.covered) {
                chunk::delete(&path).map_err(OpenError::io(&path))?;
                self.report.unfinished_chunks += 1;
                continue;
            }
            let what = "missing: the entries of its chunk cannot be read; bring it back and start again";
            let missing = directory::path_of(&path);
            self.damage(&missing, what.to_owned());
            self.seen_chunks.insert(sequence);
            self.lose_chunk(sequence, covers, format!("{}: {what}", missing.display()));
            self.keep_clear(&path)?;
        }
        Ok(())
    }

    /// Reports what the inventory names and nobody found.
    fn report_absent(&mut self, live: &[Live]) {
        let dir = self.inner.dir.clone();
        if let Some(named) = &self.inventory {
            let there: HashSet<u64> = live
                .iter()
                .map(|l| l.header.number)
                .chain(self.stale.iter().filter(|e| !e.is_chunk()).map(|e| e.number))
                .collect();
            // The extents of a chunk whose loss is reported are reported with it.
            let lost = self.lost_extents.iter().map(|(covers, _)| *covers).filter(|c| c.1 != u64::MAX);
            let covered: Vec<(u64, u64)> = self.covered.iter().copied().chain(lost).collect();
            let absent = inventory::missing(
                named,
                |number| there.contains(&number),
                |sequence| self.seen_chunks.contains(&sequence),
                &covered,
            );
            let back = named.extents.iter().filter(|held| held.below.0 > 0 && there.contains(&held.covers.1));
            let back = back.map(|held| (held.covers.1, held.below)).collect();
            let files = absent.extents.iter().map(|held| (held, extent::path(&dir, held.file), "extent"));
            let files =
                files.chain(absent.chunks.iter().map(|held| (held, chunk::path(&dir, held.file), "chunk")));
            let mut found = Vec::new();
            for (held, path, kind) in files {
                let state = if path.exists() { "does not hold it any more" } else { "missing" };
                let what = format!(
                    "{state}: {kind} {} and its records cannot be read; bring the file back and start again",
                    held.covers.1
                );
                found.push((held.covers, path, what));
            }
            for (covers, path, what) in found {
                self.lost_extents.push((covers, format!("{}: {what}", path.display())));
                self.damage(&path, what);
            }
            let mut extents = self.inner.extents.lock();
            extents.absent = absent;
            extents.returned = back;
        }
        self.inner.extents.lock().absent.chunks.extend(self.lost_chunks.iter().copied());
        let mut extents = self.inner.extents.lock();
        // Its name stays free for a file that is brought back.
        let names = |all: &[Held]| all.iter().map(|held| held.file.saturating_add(1)).max().unwrap_or(0);
        extents.next_file = extents.next_file.max(names(&extents.absent.extents));
        extents.next_chunk = extents.next_chunk.max(names(&extents.absent.chunks));
        // One that lost its header is not taken for one that holds nothing.
        let lost_files: HashSet<u64> = extents.absent.extents.iter().map(|held| held.file).collect();
        extents
            .spares
            .retain(|s| !extent::file_number(&s.path).is_some_and(|file| lost_files.contains(&file)));
        let highest = self.lost_extents.iter().map(|((_, last), _)| *last).filter(|last| *last != u64::MAX);
        extents.next_number = highest.map(|last| last + 1).fold(extents.next_number, u64::max);
        drop(extents);
        for ((_, last), why) in &self.lost_extents {
            let extents = live.iter().map(|l| (l.header.number, l.header.first_group));
            let later = extents.chain(self.chunks.iter().copied()).filter(|(number, _)| number > last);
            // The last entries of a leaf may have stood in it, unless it has later ones.
            let bound = later.map(|(_, group)| group).min().unwrap_or(u64::MAX);
            self.lost.push((bound, why.clone()));
        }
    }

    /// Numbers that a chunk of unknown contents covers are not used again: its directory may be restored.
    fn keep_clear(&mut self, path: &Path) -> Result<(), OpenError> {
        if path.exists() {
            let file = File::open(path).map_err(OpenError::io(path))?;
            let mut block = [0; BLOCK];
            read_up_to(&file, &mut block, 0).map_err(OpenError::io(path))?;
            if let Some(header) = chunk::header_of(&block) {
                let mut extents = self.inner.extents.lock();
                extents.next_number = extents.next_number.max(header.covers.1.saturating_add(1));
            }
        }
        Ok(())
    }

    fn chunk_directory(
        &mut self,
        sequence: u64,
        path: &Path,
    ) -> Option<(DirectoryHeader, Vec<(LeafId, Summary)>)> {
        let opened = directory::open(path).and_then(|(header, leaves)| {
            if header.disk != self.inner.superblock.disk {
                return Err(format!("belongs to disk {}", header.disk));
            }
            let ours = header.extent == CHUNK_KEY | sequence && header.covers.is_some();
            if ours { Ok((header, leaves)) } else { Err("directory of another file".to_owned()) }
        });
        opened
            .map_err(|what| {
                let what = format!("directory not usable ({what}); the entries of the chunk cannot be read");
                self.damage(&directory::path_of(path), what.clone());
                let covers = self.covers_of(sequence, path).unwrap_or((0, u64::MAX));
                self.lose_chunk(sequence, covers, format!("{}: {what}", path.display()));
            })
            .ok()
    }

    /// Takes an extent's directory, if it has a good one; answers the number after its last group.
    fn use_directory(&mut self, this: &Live) -> Option<u64> {
        let extent = &this.extent;
        let path = directory::path_of(&extent.path);
        if !path.exists() {
            return None;
        }
        let (header, leaves) = match directory::open(&extent.path) {
            Ok((header, leaves)) if header.extent == extent.number => (header, leaves),
            // Of an earlier life of the file.
            Ok(_) => return None,
            Err(what) => {
                self.damage(&path, format!("directory not usable ({what}); the extent is read instead"));
                return None;
            }
        };
        self.take_directory(extent, header, leaves);
        Some(header.end_group)
    }

    fn take_directory(
        &mut self,
        extent: &Arc<Extent>,
        header: DirectoryHeader,
        leaves: Vec<(LeafId, Summary)>,
    ) {
        let path = directory::path_of(&extent.path);
        extent.directory.get_or_init(|| header);
        extent.payload.store(leaves.iter().map(|(_, s)| s.bytes).sum(), Ordering::Relaxed);
        for (id, summary) in leaves {
            extent.leaves.lock().insert(id);
            if summary.discarded {
                self.inner.forget(id.loglet);
                continue;
            }
            self.names(id, header.end_group.saturating_sub(1));
            if let Err(e) = self.use_summary(id, summary, extent) {
                self.damage(&path, e.to_string());
                self.lost.push((header.end_group.saturating_sub(1), e.to_string()));
            }
        }
        self.report.entries += u64::from(header.entries);
    }

    /// Takes note that a group names a leaf.
    fn names(&mut self, id: LeafId, group: u64) {
        let last = self.last_group.entry(id).or_insert(group);
        *last = (*last).max(group);
    }

    fn use_summary(&self, id: LeafId, summary: Summary, extent: &Arc<Extent>) -> Result<(), ReadError> {
        let leaf = self.inner.leaf(id);
        let mut state = leaf.state.write();
        if state.discarded {
            return Ok(());
        }
        if summary.fenced {
            state.registers.fence();
        }
        let mut read = Ok(());
        if summary.is_contiguous() {
            state.registers.set_run(summary.addresses.0, summary.addresses.1 + 1);
        } else {
            for i in 0..summary.entries {
                match self.inner.directories.entry(extent, &summary, i) {
                    Ok(entry) => {
                        state.registers.set(entry.address);
                    }
                    Err(e) => read = Err(e),
                }
            }
        }
        state.registers.trim(summary.trim);
        // Also where a page is damaged: an extent that is not indexed would count as dead.
        if summary.entries > 0 {
            let at = state.extents.partition_point(|(e, _)| e.number < extent.number);
            state.extents.insert(at, (extent.clone(), Index::Disk(summary)));
        }
        read
    }

    fn scan(&mut self, this: &Live, bound: Option<u64>) -> Result<crate::store::recovery::Scan, OpenError> {
        let extent = this.extent.clone();
        let found = scan(&extent.file, &extent.path, this.header, bound, |group| {
            for record in &group.records {
                self.apply(record, group.number, &extent);
            }
        })
        .map_err(OpenError::io(&extent.path))?;
        self.report.scanned += 1;
        self.report.torn_bytes += found.torn_bytes;
        for damage in &found.damage {
            if let (Some(id), Some(address)) = (damage.segment, damage.address) {
                self.inner.leaf(id).state.write().note_unreadable(address.0, damage.to_string());
            }
        }
        self.report.damage.extend(found.damage.iter().cloned());
        self.lost.extend(found.lost_groups.iter().cloned());
        Ok(found)
    }

    fn apply(&mut self, found: &Found, group: u64, extent: &Arc<Extent>) {
        let RecordHeader { kind, leaf: id, address, .. } = found.record;
        if kind == RecordKind::Discard {
            Inner::note_discard(extent, id.loglet);
            self.inner.forget(id.loglet);
            return;
        }
        self.names(id, group);
        let leaf = self.inner.leaf(id);
        extent.leaves.lock().insert(id);
        let mut state = leaf.state.write();
        match kind {
            RecordKind::Entry | RecordKind::Repair => {
                state.registers.set(address.0);
                match &found.entry {
                    Some((header, position)) => {
                        let entry = IndexEntry::new(header, address, *position as u32);
                        state.index_in(id, extent).insert(entry);
                    }
                    None => {
                        let what = format!("{}: entry header damaged", extent.path.display());
                        state.damaged.insert(address.0, what);
                    }
                }
                self.report.entries += 1;
            }
            RecordKind::Fence => state.registers.fence(),
            RecordKind::Trim => state.registers.trim(address.0),
            RecordKind::Discard => {}
        }
    }

    /// Writes the last group again, to a fresh extent: group first, then the header that makes it count. Until then
    /// the old copy counts.
    fn copy_last(&mut self, group: &FoundGroup) -> Result<Open, OpenError> {
        let good = group.bytes.get(..group.good).unwrap_or_default();
        let need = (GROUP_HEADER_LEN + good.len()).next_multiple_of(BLOCK) as u64;
        let prepared = self.inner.prepare_extent(need, group.number);
        let (header, path) = prepared.map_err(OpenError::io(&self.inner.dir))?;
        let start = (BLOCK + GROUP_HEADER_LEN) as u64;
        let (records, _, _) = parse(good, group.number, start, &path);
        let head = GroupHeader {
            extent: header.number,
            number: group.number,
            generation: header.generation,
            len: good.len() as u32,
            records: records.len() as u32,
        };
        let buffer = padded(&head.encode(header.salt), good);
        let io = OpenError::io(&path);
        let written = Writer::open(&path, self.inner.mode, self.inner.faults.clone()).and_then(|writer| {
            writer.write(buffer.filled(), BLOCK as u64)?;
            Ok(writer)
        });
        let writer = written.map_err(io)?;
        let mut open = self.inner.begin_extent(header, &path, writer).map_err(OpenError::io(&path))?;
        open.position = BLOCK as u64 + buffer.len() as u64;
        for record in &records {
            self.apply(record, group.number, &open.extent);
        }
        Ok(open)
    }

    /// Writes the last group again where it stands, for want of room elsewhere: the extent goes on behind it. What is read there now
    /// may not have been on the disk; the same bytes are, when this returns, and a write that is cut off leaves them as they are.
    fn write_again(&mut self, group: &FoundGroup, this: &Live) -> Result<Open, OpenError> {
        let extent = this.extent.clone();
        let good = group.bytes.get(..group.good).unwrap_or_default();
        let start = group.position + GROUP_HEADER_LEN as u64;
        let (records, _, _) = parse(good, group.number, start, &extent.path);
        let ExtentHeader { salt, first_group, .. } = this.header;
        let mut head = [0; GROUP_HEADER_LEN];
        read_up_to(&extent.file, &mut head, group.position).map_err(OpenError::io(&extent.path))?;
        // Of a torn one nothing was acknowledged, and its header changes.
        if let Some(torn) = GroupHeader::decode(&head, salt).filter(|_| good.len() < group.bytes.len()) {
            let (len, count) = (good.len() as u32, records.len() as u32);
            head = GroupHeader { len, records: count, ..torn }.encode(salt);
        }
        let buffer = padded(&head, good);
        let writer = Writer::open(&extent.path, self.inner.mode, self.inner.faults.clone());
        let written = writer.and_then(|writer| {
            writer.write(buffer.filled(), group.position)?;
            Ok(writer)
        });
        let writer = written.map_err(OpenError::io(&extent.path))?;
        for record in &records {
            self.apply(record, group.number, &extent);
        }
        Ok(Open { extent, writer, position: group.position + buffer.len() as u64, salt, first_group })
    }

    /// As [`write_again`](Recovery::write_again), where nothing may be written behind it: what is read there stays, also when the
    /// system dies. Whether it does.
    fn make_sure(&mut self, group: &FoundGroup, this: &Live) -> bool {
        match self.write_again(group, this) {
            Ok(_) => true,
            Err(e) => {
                tracing::warn!("what was written last may not stay: {e}");
                false
            }
        }
    }

    /// Takes the good records of the last group where they are.
    fn keep_last(&mut self, group: &FoundGroup, extent: &Arc<Extent>) {
        let good = group.bytes.get(..group.good).unwrap_or_default();
        let start = group.position + GROUP_HEADER_LEN as u64;
        let (records, _, _) = parse(good, group.number, start, &extent.path);
        for record in &records {
            self.apply(record, group.number, extent);
        }
    }

    /// Damage that names no segment concerns every leaf that may have had records in it.
    fn mark_suspects(&mut self) {
        for (group, why) in &self.lost {
            for leaf in self.inner.leaves() {
                let last = self.last_group.get(&leaf.id).copied().unwrap_or(0);
                let mut state = leaf.state.write();
                if last < *group || !state.registers.is_contiguous() {
                    state.suspect.get_or_insert_with(|| why.clone());
                }
            }
        }
        if let Some((_, why)) = self.lost.first() {
            self.inner.lost_any.get_or_init(|| why.clone());
            let of_files = self.inner.extents.lock().absent.clone();
            let files = of_files.extents.len() + of_files.chunks.len();
            self.inner.lost_within.store(self.lost.len() > files, Ordering::Relaxed);
        }
        let Some((_, why)) = self.lost_extents.first() else { return };
        let lost: Vec<(u64, u64)> = self.lost_extents.iter().map(|(numbers, _)| *numbers).collect();
        for leaf in self.inner.leaves() {
            let mut state = leaf.state.write();
            let missing = missing(&state, &self.inner.directories, &lost);
            if missing.is_empty() {
                continue;
            }
            state.lost = missing;
            state.suspect.get_or_insert_with(|| why.clone());
        }
    }
}

/// A group of these records, as it stands in an extent.
fn padded(head: &[u8], records: &[u8]) -> Aligned {
    let mut buffer = Aligned::with_capacity(align_up(head.len() + records.len()));
    buffer.extend(head);
    buffer.extend(records);
    buffer.pad();
    buffer
}
