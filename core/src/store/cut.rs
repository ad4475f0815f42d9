//! Gives back what a closed extent does not use, so that ending one early, as each start does, costs no room.
//!
//! INV-STORE-15 an extent is cut only behind its last group, and the header says so, durably and one copy at a time, before the
//! file is cut: whenever the program ends meanwhile, the header is whole and the file at least as long as it says.

use crate::store::Inner;
use crate::store::extent::Extent;
use crate::store::file::{Aligned, Writer};
use crate::store::format::{BLOCK, ExtentHeader, HeaderBlock};
use crate::store::recovery::read_up_to;
use std::fs::OpenOptions;
use std::io;

impl Inner {
    /// Whether less than the reserve is free.
    pub(crate) fn is_short(&self) -> io::Result<bool> {
        Ok(self.free_space()? < self.reserve_bytes)
    }

    /// Cuts an extent that takes no more writes and whose groups end at `end`, if that is worth it: room is short, or less than
    /// half of it is used. Nothing is lost where that fails.
    pub(crate) fn give_back(&self, extent: &Extent, end: u64) {
        let end = end.next_multiple_of(BLOCK as u64);
        if end >= extent.len() || (extent.len() / 2 < end && !self.is_short().unwrap_or(true)) {
            return;
        }
        if let Err(e) = self.cut(extent, end) {
            tracing::warn!("{}: its end is not given back: {e}", extent.path.display());
        }
    }

    fn cut(&self, extent: &Extent, end: u64) -> io::Result<()> {
        let mut block = [0; BLOCK];
        read_up_to(&extent.file, &mut block, 0)?;
        // One with a damaged copy stays as it is.
        let HeaderBlock::Live { header, damaged_copy: false } = ExtentHeader::read(&block) else {
            return Ok(());
        };
        if header.number != extent.number {
            return Ok(());
        }
        let _moving = self.moving();
        let writer = Writer::open(&extent.path, self.mode, None)?;
        let mut buffer = Aligned::with_capacity(BLOCK);
        for block in steps(&header, end) {
            buffer.clear();
            buffer.extend(&block);
            writer.write(buffer.filled(), 0)?;
        }
        let file = OpenOptions::new().write(true).open(&extent.path)?;
        file.set_len(end)?;
        extent.shrink(end);
        // So that the room is there when this returns; the header is durable already.
        file.sync_all()
    }
}

/// What the header block is in turn.
fn steps(header: &ExtentHeader, end: u64) -> [[u8; BLOCK]; 2] {
    [header.encode_cut(end), ExtentHeader { len: end, ..*header }.encode()]
}
