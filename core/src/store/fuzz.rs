//! Entry points for fuzzing: bytes from a disk, checksums made to fit so that the checks behind them are reached.
//!
//! A control byte of the input, in a place that the layout leaves unused, says what is *not* mended: 0 mends all.

use super::chunk::{ChunkHeader, header_of};
use super::directory::{self, Directories};
use super::extent::{CHUNK_KEY, Extent};
use super::format::{
    BLOCK, ExtentHeader, GROUP_HEADER_LEN, GroupHeader, RECORD_HEADER_LEN, RecordHeader, RecordKind, align_up,
};
use super::inventory::Inventory;
use super::leaf::{read_encoded, verify_entry};
use super::leaf_table::LeafTable;
use super::recovery::{Found, scan};
use super::superblock::Superblock;
use crate::codec::batch::{BatchHead, CRC_FROM, set_crc};
use crate::codec::crc32c;
use crate::codec::entry::{ENTRY_HEADER_LEN, EntryHeader};
use crate::types::{Address, DiskId, Generation, LeafId, LogletId};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

/// Largest input that is looked at, bytes.
const INPUT_MAX: usize = 256 << 10;
const KEEP_CHECKSUM: u8 = 1;
const KEEP_LENGTH: u8 = 2;
const KEEP_NUMBER: u8 = 4;
/// Place of a record's control byte in its header, of an entry's in its own, of a group's in its own.
const RECORD_CONTROL: usize = 24;
const ENTRY_CONTROL: usize = 5;
/// An entry's header and a batch's head.
const ENTRY_MIN: usize = ENTRY_HEADER_LEN + 64;
const GROUP_CONTROL: usize = 5;

/// Recovery of an extent: an input byte, then what stands behind the extent's header block.
///
/// Panics when recovery does, or answers places outside of the extent, or twice differently.
pub fn journal(data: &[u8]) {
    let Some((&first, body)) = data.split_first() else { return };
    let mut body = body.get(..body.len().min(INPUT_MAX)).unwrap_or_default().to_vec();
    let header = ExtentHeader {
        disk: DiskId(Uuid::nil()),
        generation: Generation(1),
        number: 1,
        first_group: 1,
        len: (BLOCK + align_up(body.len()).max(BLOCK)) as u64,
        salt: 0,
    };
    // A cut file has the length of its input; a whole one that of its header.
    if first & 1 == 0 {
        body.resize((header.len as usize) - BLOCK, 0);
    }
    mend_groups(&mut body, header.first_group);
    let file = memory_file(&header.encode(), &body).expect("a file in memory");
    let proven = (first & 2 != 0).then_some(u64::from(first >> 2));
    let once = look(&file, header, proven);
    assert_eq!(once, look(&file, header, proven), "the same bytes read twice");
}

/// What recovery says, as text.
fn look(file: &File, header: ExtentHeader, proven: Option<u64>) -> String {
    let mut groups = Vec::new();
    let inside = |found: &Found| {
        if let Some((_, position)) = found.entry {
            assert!(position + ENTRY_HEADER_LEN as u64 <= header.len, "an entry lies in its extent");
        }
    };
    let scan = scan(file, Path::new("extent"), header, proven, |group| {
        group.records.iter().for_each(inside);
        groups.push((group.number, group.position, group.records.len()));
    })
    .expect("a file in memory can be read");
    assert!(groups.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1), "groups come in order");
    assert!(scan.end <= header.len.max(BLOCK as u64), "the end lies in the extent");
    if let Some(last) = &scan.last {
        last.records.iter().for_each(inside);
        assert!(last.good <= last.bytes.len(), "what is good is there");
        assert!(scan.next_group > last.number, "the next group comes after the last");
    }
    format!("{groups:?} {scan:?}")
}

fn mend_groups(body: &mut [u8], first_group: u64) {
    let (mut at, mut number) = (0, first_group);
    while at + BLOCK <= body.len() {
        let room = body.len() - at - GROUP_HEADER_LEN;
        let group = &mut body[at..];
        let control = group[GROUP_CONTROL];
        let field = |from: usize| {
            u32::from_le_bytes([group[from], group[from + 1], group[from + 2], group[from + 3]])
        };
        let (len, records) = (field(32), field(36));
        let len = if control & KEEP_LENGTH != 0 { len } else { len % (room as u32 + 1) % (4 * BLOCK as u32) };
        let own = if control & KEEP_NUMBER != 0 { u64::from(group[16]) } else { number };
        let count = mend_records(group.get_mut(GROUP_HEADER_LEN..).unwrap_or_default(), len as usize, own);
        let records = if control & KEEP_LENGTH != 0 { records } else { count };
        let header = GroupHeader { extent: 1, number: own, generation: Generation(1), len, records };
        if control & KEEP_CHECKSUM == 0 {
            let encoded = header.encode(0);
            group[..GROUP_HEADER_LEN].copy_from_slice(&encoded);
        }
        number += 1;
        at += header.span().min(body.len()).max(BLOCK);
    }
}

/// Mends records in the first `len` bytes; answers how many there are.
fn mend_records(bytes: &mut [u8], len: usize, group: u64) -> u32 {
    let len = len.min(bytes.len());
    let mut rest = bytes.get_mut(..len).unwrap_or_default();
    let mut count = 0;
    while rest.len() > RECORD_HEADER_LEN {
        let control = rest[RECORD_CONTROL];
        let room = rest.len() - RECORD_HEADER_LEN;
        let mut body = usize::from(u16::from_le_bytes([rest[4], rest[5]])) % 1024;
        // Room for an entry with a batch's head, where there is some.
        if control & KEEP_LENGTH == 0 && body < ENTRY_MIN && rest[0].is_multiple_of(8) {
            body += ENTRY_MIN;
        }
        if body >= room || room - body <= RECORD_HEADER_LEN {
            body = room;
        }
        let kind = match rest[0] % 8 {
            1 => RecordKind::Fence,
            2 => RecordKind::Trim,
            3 => RecordKind::Repair,
            4 => RecordKind::Discard,
            _ => RecordKind::Entry,
        };
        let leaf = LeafId { loglet: LogletId(u64::from(rest[8])), leaf: u16::from(rest[2]) };
        let address = Address(u64::from_le_bytes(*rest[16..].first_chunk().expect("a header's length")));
        let record = RecordHeader { kind, leaf, address, len: body as u32 };
        if control & KEEP_CHECKSUM == 0 {
            rest[..RECORD_HEADER_LEN].copy_from_slice(&record.encode(group));
        }
        mend_entry(&mut rest[RECORD_HEADER_LEN..RECORD_HEADER_LEN + body]);
        count += 1;
        rest = rest.split_at_mut(RECORD_HEADER_LEN + body).1;
    }
    count
}

fn mend_entry(bytes: &mut [u8]) {
    if bytes.len() < ENTRY_HEADER_LEN {
        return;
    }
    let control = bytes[ENTRY_CONTROL];
    let (head, payload) = bytes.split_at_mut(ENTRY_HEADER_LEN);
    head[0..3].copy_from_slice(&[0x57, 0x52, 1]);
    head[3] = [2, 1, 3, 4, 5][usize::from(head[3]) % 5];
    if control & KEEP_LENGTH == 0 {
        head[88..92].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    }
    let Ok(header) = EntryHeader::decode(head) else { return };
    if control & KEEP_CHECKSUM == 0 {
        if let Some(parsed) = BatchHead::parse(payload)
            && let crc = crc32c(&[payload.get(CRC_FROM..).unwrap_or_default()])
            && crc != parsed.crc
            && let Some(batch) = payload.first_chunk_mut()
        {
            set_crc(batch, crc);
        }
        let covered = payload.get(..header.covered_len()).unwrap_or_default();
        head.copy_from_slice(&header.encode(covered));
    }
}

fn memory_file(head: &[u8], body: &[u8]) -> io::Result<File> {
    let file = File::from(rustix::fs::memfd_create("extent", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all_at(head, 0)?;
    file.write_all_at(body, head.len() as u64)?;
    Ok(file)
}

/// A directory of an extent or of a chunk, a chunk's header, the leaf table, the superblock: the first input byte says
/// which.
///
/// Panics when a decoder does.
pub fn directory(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let rest = rest.get(..rest.len().min(INPUT_MAX)).unwrap_or_default();
    match first % 5 {
        0 => leaf_table(rest),
        4 => inventory(rest),
        1 => superblock(rest),
        2 => file_directory(rest, 7),
        _ => {
            chunk_header(rest);
            file_directory(rest, CHUNK_KEY | 7);
        }
    }
}

fn with_checksum(bytes: &[u8], head: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(start) = bytes.get_mut(..head.len()) {
        start.copy_from_slice(head);
    }
    let crc = crc32c(&[&bytes]);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn leaf_table(bytes: &[u8]) {
    let disk = DiskId(Uuid::nil());
    let mut head = [0; 24];
    head[..5].copy_from_slice(b"RWLT\x01");
    head[4] += bytes.first().copied().unwrap_or_default() % 2;
    if let Some(table) = LeafTable::decode(&with_checksum(bytes, &head), disk) {
        for (_, registers) in table.leaves {
            assert!(registers.trimmed() <= registers.end(), "registers: trim <= end");
            assert!(
                registers.holes().all(|(s, e)| s < e && e <= registers.end()),
                "registers: holes below the end"
            );
        }
    }
}

fn inventory(bytes: &[u8]) {
    let disk = DiskId(Uuid::nil());
    let mut head = [0; 24];
    head[..5].copy_from_slice(b"RWIN\x01");
    if let Some(all) = Inventory::decode(&with_checksum(bytes, &head), disk) {
        let rows = all.extents.len() + all.chunks.len();
        assert!(rows * 32 <= bytes.len(), "an inventory of {rows} rows out of {} bytes", bytes.len());
    }
}

fn superblock(bytes: &[u8]) {
    let good = Superblock {
        cluster: Uuid::nil(),
        node: crate::types::NodeId(1),
        disk: DiskId(Uuid::nil()),
        generation: Generation(1),
    };
    let mut block = good.encode();
    for pair in bytes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([pair[0], pair[1]])) % block.len();
        block[at] ^= pair[2];
    }
    match Superblock::decode(&block, Path::new("superblock")) {
        Ok(read) => assert_eq!((read, block), (good, good.encode()), "a changed superblock is noticed"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn chunk_header(bytes: &[u8]) {
    let good = ChunkHeader { disk: DiskId(Uuid::nil()), sequence: 7, covers: (3, 5), data_end: 9000 };
    let mut block = good.encode();
    for pair in bytes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([pair[0], pair[1]])) % block.len();
        block[at] ^= pair[2];
    }
    match header_of(&block) {
        Some(read) => assert_eq!((read, block), (good, good.encode()), "a changed header is noticed"),
        None => assert_ne!(block, good.encode()),
    }
    let read = header_of(bytes);
    assert!(read.is_none_or(|h| h.encode().as_slice() == bytes), "one encoding per header");
}

/// A place for directory files of this process.
fn place() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    thread_local!(static PLACE: PathBuf = {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        dir.join(format!("rangeway-fuzz-{}-{number}.ext", std::process::id()))
    });
    PLACE.with(Clone::clone)
}

fn file_directory(data: &[u8], key: u64) {
    let Some((counts, rest)) = data.split_first_chunk::<4>() else { return };
    let control = counts[3];
    let mut bytes = vec![0u8; BLOCK];
    let head = rest.len().min(BLOCK - 4);
    bytes[..head].copy_from_slice(&rest[..head]);
    bytes[0..5].copy_from_slice(b"RWED\x01");
    if key & CHUNK_KEY != 0 {
        bytes[5] = 1;
    }
    bytes[24..32].copy_from_slice(&u64::to_le_bytes(key));
    if control & KEEP_LENGTH == 0 {
        for (at, count) in [(56, counts[0] % 60), (60, counts[1] % 130), (64, counts[2])] {
            bytes[at..at + 4].copy_from_slice(&u32::from(count).to_le_bytes());
        }
    }
    let Ok(header) = directory::DirectoryHeader::decode(&bytes) else { return };
    let pages = header.pages().min(64);
    let mut rows = rest.get(head..).unwrap_or_default().iter().copied().chain(std::iter::repeat(0));
    for _ in 1..pages {
        bytes.extend(rows.by_ref().take(BLOCK));
    }
    for (number, page) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        let (room, crc) = page.split_at_mut(BLOCK - 4);
        let fits = crc32c(&[room, &u64::to_le_bytes(key), &(number as u32).to_le_bytes()]);
        if control & KEEP_CHECKSUM == 0 || number == 0 {
            crc.copy_from_slice(&fits.to_le_bytes());
        }
    }
    let path = place();
    let written = std::fs::write(directory::path_of(&path), &bytes);
    let file = || File::options().read(true).write(true).create(true).truncate(true).open(&path);
    written.and_then(|()| file()).map(|file| read_directory(&path, file)).expect("a small file");
    let _gone = std::fs::remove_file(directory::path_of(&path)).and_then(|()| std::fs::remove_file(&path));
}

fn read_directory(path: &Path, file: File) {
    let Ok((header, leaves)) = directory::open(path) else { return };
    let extent = match header.covers {
        Some(covers) => Extent::chunk(header.extent & !CHUNK_KEY, covers, path.to_owned(), file, 1 << 20),
        None => Extent::new(header.extent, path.to_owned(), file, 1 << 20),
    };
    extent.directory.set(header).expect("set once");
    let directories = Directories::as_they_are();
    for (_, leaf) in leaves.iter().take(64) {
        let _contiguous = leaf.is_contiguous();
        for i in [0, 1, leaf.entries / 2, leaf.entries.wrapping_sub(1), u32::MAX] {
            if let Ok(entry) = directories.entry(&extent, leaf, i) {
                let _last = entry.last_offset();
                let mut bytes = [0; ENTRY_MIN];
                let read = read_encoded(&extent, &entry, &directories, &mut bytes);
                let _header = read.is_ok_and(|_| verify_entry(&bytes).is_ok());
            }
            let Ok(row) = directories.partition(&extent, leaf, i) else { continue };
            let found = directories.find_partition(&extent, leaf, row.partition);
            if let Ok(Some(row)) = found
                && let Ok(first) = directories.first_in_partition(&extent, &row, row.last_offset)
            {
                let _entry = directories.in_partition(&extent, &row, first);
            }
        }
        let _first = directories.first_entry(&extent, leaf, |e| e.address < leaf.trim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fuzz::smoke;

    #[test]
    fn any_bytes_of_an_extent_are_read_without_panic() {
        smoke(3000, 6 * BLOCK, journal);
    }

    #[test]
    fn any_bytes_of_directories_tables_and_superblocks_are_read_without_panic() {
        smoke(3000, 5 * BLOCK, directory);
    }

    #[test]
    fn mended_bytes_reach_the_records() {
        let mut body = vec![0u8; 2 * BLOCK];
        body[32..36].copy_from_slice(&600u32.to_le_bytes());
        mend_groups(&mut body, 1);
        let header = GroupHeader::decode(&body, 0).expect("a group");
        let payload = &body[GROUP_HEADER_LEN..GROUP_HEADER_LEN + header.len as usize];
        let (found, good, bad) = super::super::recovery::parse(payload, header.number, 0, Path::new("x"));
        assert_eq!((found.len() as u32, good, bad.len()), (header.records, payload.len(), 0));
        assert!(found.iter().any(|f| f.entry.is_some()));
    }
}
