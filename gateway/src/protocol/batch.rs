//! Kafka v2 record batches from clients: what is checked before one is stored, and a walk over its records that
//! borrows.
//!
//! Owns the meaning of a batch's bytes. A batch is never taken apart: what passes is stored as it came, but for the
//! rewrites in [`check`]. What is checked of compressed batches, and why: `docs/decisions/0009-what-is-checked-of-a-batch.md`.

mod compress;
mod records;

pub use compress::Codecs;
pub use records::{InflateError, Malformed, Record, Records, inflate};

use bytes::{Bytes, BytesMut};
use kafka_protocol::ResponseError;
use rangeway_core::api::batch::{BATCH_HEAD_LEN, BATCH_OVERHEAD, BatchHead, CRC_FROM, restamp, set_crc};
use rangeway_core::api::{TopicView, crc32c};
use rangeway_core::config::topic::{Compression, TimestampType};
use std::borrow::Cow;

/// Bit 3 of the attributes: the timestamps were given by a broker.
pub const LOG_APPEND_TIME: i16 = 0x08;
/// A compressed batch may grow to this many times the largest batch when it must be looked into.
const INFLATED_BATCHES_MAX: usize = 64;
/// And to no more bytes than this, or the largest batch where that is larger: a topic may take batches of 2 GiB.
const INFLATED_BYTES_MAX: usize = 256 << 20;
/// Codec of the attributes.
const ZSTD: i16 = 4;
/// What a record's timestamp is that has none.
const NO_TIMESTAMP: i64 = -1;

/// What a topic demands of a batch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Largest batch in bytes, its 12 bytes of overhead included (`max.message.bytes`).
    pub bytes_max: usize,
    /// Records need keys (`cleanup.policy` has `compact`).
    pub keys: bool,
    /// Timestamps are given by the broker (`message.timestamp.type`).
    pub broker_time: bool,
    /// How far timestamps may lie in the past, ms; `None`: as far as they like.
    pub before_max_ms: Option<i64>,
    /// How far timestamps may lie in the future, ms.
    pub after_max_ms: i64,
    /// How batches are stored; `None`: as they were sent (`compression.type`).
    pub compression: Option<Compression>,
    /// Compressed batches are opened, whether another rule needs it or not (`rangeway.compressed.check`).
    pub opened: bool,
}

impl Rules {
    /// The rules of a topic.
    pub fn of(topic: &TopicView) -> Rules {
        let config = &topic.config;
        Rules {
            bytes_max: config.max_message_bytes as usize,
            keys: config.cleanup.compact,
            broker_time: config.timestamp_type == TimestampType::LogAppendTime,
            before_max_ms: Some(config.timestamp_before_max_ms).filter(|ms| *ms < i64::MAX),
            after_max_ms: config.timestamp_after_max_ms,
            compression: config.compression,
            opened: config.compressed_check,
        }
    }
}

/// Why a batch is not taken: the code, a sentence, and the records at fault where it is those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Kafka's code.
    pub code: ResponseError,
    /// What is wrong, for people.
    pub message: String,
    /// Indexes of the records at fault in their batch: all that lack a key, else the first one.
    pub records: Vec<i32>,
}

fn refused(code: ResponseError, message: impl Into<String>) -> Refused {
    Refused { code, message: message.into(), records: Vec::new() }
}

fn invalid(message: impl Into<String>) -> Refused {
    refused(ResponseError::InvalidRecord, message)
}

/// Checks the records of one partition of a Produce request: one whole batch that any consumer can read.
///
/// The bytes are answered as they are to be stored: as received, with exceptions that Kafka makes too. On a topic of client
/// timestamps a batch which claims broker timestamps has that bit cleared, one whose head says another largest timestamp
/// than its records have gets the right one, and either its CRC anew; and where the topic names a codec
/// (`compression.type`), a batch of another one is compressed anew.
pub fn check(
    records: Option<&Bytes>,
    version: i16,
    now_ms: i64,
    rules: &Rules,
) -> Result<(BatchHead, Bytes), Refused> {
    let records = records.ok_or_else(|| invalid("the records are null; a batch is needed"))?;
    let head = head(records)?;
    if head.codec() == ZSTD && version < 7 {
        return Err(refused(
            ResponseError::UnsupportedCompressionType,
            format!("zstd needs Produce version 7 or above, this is version {version}"),
        ));
    }
    if head.base_offset != 0 {
        return Err(invalid(format!(
            "base offset {} in a batch from a client, it must be 0",
            head.base_offset
        )));
    }
    if records.len() > rules.bytes_max {
        return Err(refused(
            ResponseError::MessageTooLarge,
            format!("a batch of {} bytes, the topic takes at most {}", records.len(), rules.bytes_max),
        ));
    }
    let covered = records.get(CRC_FROM..).unwrap_or_default();
    let crc = crc32c(&[covered]);
    if crc != head.crc {
        return Err(refused(
            ResponseError::CorruptMessage,
            format!("the batch's CRC is {:08x}, its bytes give {crc:08x}", head.crc),
        ));
    }
    fields(&head)?;
    if let Some(compression) = rules.compression.filter(|to| compress::codec(*to) != head.codec()) {
        return compressed_anew(records, head, compression, now_ms, rules);
    }
    let newest = contents(records, &head, now_ms, rules)?;
    Ok(with_right_times(records, head, newest, rules))
}

/// Whether [`check`] decompresses or compresses these records, which may take long.
pub fn is_looked_into(records: &[u8], rules: &Rules) -> bool {
    let Some(head) = BatchHead::parse(records) else { return false };
    let anew = rules.compression.is_some_and(|to| compress::codec(to) != head.codec());
    anew || head.codec() != 0 && must_inflate(&head, rules)
}

/// Whether the topic wants it, or a rule cannot be judged by a compressed batch's head, or the head cannot be right: clients count from the first
/// record's timestamp, and some have left the largest one out.
fn must_inflate(head: &BatchHead, rules: &Rules) -> bool {
    let by_time = rules.before_max_ms.is_some() || head.max_timestamp < head.base_timestamp;
    rules.opened || rules.keys || !rules.broker_time && by_time
}

/// The batch in the codec of its topic, its records looked at on the way.
fn compressed_anew(
    batch: &Bytes,
    head: BatchHead,
    compression: Compression,
    now_ms: i64,
    rules: &Rules,
) -> Result<(BatchHead, Bytes), Refused> {
    let records = inflate(batch, &head, inflated_max(rules)).map_err(not_inflated)?;
    let newest = walk(&records, &head, now_ms, rules)?;
    let (head, bytes) = with_right_times(batch, head, newest, rules);
    let (head, bytes) = compress::again(&bytes, head, &records, compression)
        .map_err(|e| refused(ResponseError::UnknownServerError, e.to_string()))?;
    if bytes.len() > rules.bytes_max {
        let (got, most) = (bytes.len(), rules.bytes_max);
        let why = format!("a batch of {got} bytes in the topic's codec, the topic takes at most {most}");
        return Err(refused(ResponseError::MessageTooLarge, why));
    }
    Ok((head, bytes))
}

/// The head of the one batch that `records` must be.
fn head(records: &[u8]) -> Result<BatchHead, Refused> {
    if records.is_empty() {
        return Err(invalid("no batch; exactly one is needed"));
    }
    // The magic stands in the same place in all formats.
    match records.get(16) {
        Some(2) | None => {}
        Some(magic) => {
            return Err(invalid(format!("message format {magic}; only format 2 can be produced")));
        }
    }
    let head = BatchHead::parse(records).ok_or_else(|| {
        invalid(format!("{} bytes are no batch, its head has {BATCH_HEAD_LEN}", records.len()))
    })?;
    let claimed = i64::from(head.batch_length) + BATCH_OVERHEAD as i64;
    match claimed.cmp(&(records.len() as i64)) {
        std::cmp::Ordering::Equal => Ok(head),
        std::cmp::Ordering::Greater => {
            Err(invalid(format!("a batch of {claimed} bytes was cut to {}", records.len())))
        }
        std::cmp::Ordering::Less => Err(invalid(format!(
            "{} bytes after a batch of {claimed}: exactly one batch is needed",
            records.len() as i64 - claimed
        ))),
    }
}

fn fields(head: &BatchHead) -> Result<(), Refused> {
    if head.is_control() {
        return Err(invalid("clients may not write control batches"));
    }
    if head.record_count <= 0 || i64::from(head.record_count) != i64::from(head.last_offset_delta) + 1 {
        return Err(invalid(format!(
            "{} records with a last offset delta of {}",
            head.record_count, head.last_offset_delta
        )));
    }
    if head.producer_id >= 0 && (head.base_sequence < 0 || head.producer_epoch < 0) {
        return Err(invalid(format!(
            "producer {} with epoch {} and sequence {}",
            head.producer_id, head.producer_epoch, head.base_sequence
        )));
    }
    if head.codec() > ZSTD {
        let why = format!("unknown codec {}", head.codec());
        return Err(refused(ResponseError::UnknownServerError, why));
    }
    Ok(())
}

/// Looks at the records: always where they lie open, else only when a rule cannot be judged by the head. Answers the
/// largest timestamp, ms: the records' own where they were looked at, else the head's.
fn contents(batch: &Bytes, head: &BatchHead, now_ms: i64, rules: &Rules) -> Result<i64, Refused> {
    if head.codec() == 0 {
        let records = batch.get(BATCH_HEAD_LEN..).unwrap_or_default();
        return walk(records, head, now_ms, rules);
    }
    if must_inflate(head, rules) {
        let records = inflate(batch, head, inflated_max(rules)).map_err(not_inflated)?;
        return walk(&records, head, now_ms, rules);
    }
    records::looks_compressed(batch.get(BATCH_HEAD_LEN..).unwrap_or_default(), head.codec())
        .map_err(|e| refused(ResponseError::UnknownServerError, e))?;
    // What the head says is taken for the records' own, within the topic's bound.
    timestamp(head.max_timestamp, now_ms, rules).map_err(|message| Refused {
        code: ResponseError::InvalidTimestamp,
        message,
        records: vec![head.last_offset_delta],
    })?;
    Ok(head.max_timestamp)
}

/// What a batch that must be looked into may grow to, in bytes.
fn inflated_max(rules: &Rules) -> usize {
    let times = rules.bytes_max.saturating_mul(INFLATED_BATCHES_MAX);
    times.min(INFLATED_BYTES_MAX.max(rules.bytes_max))
}

/// Kafka has no other code for what does not decompress. That it comes to too much is said as of any batch that is too
/// large: Java's client then cuts it into smaller ones.
fn not_inflated(error: InflateError) -> Refused {
    let code = match error {
        InflateError::TooLarge(_) => ResponseError::MessageTooLarge,
        InflateError::Malformed(_) => ResponseError::UnknownServerError,
    };
    refused(code, error.to_string())
}

/// Checks every record; the largest timestamp, ms, -1 where none has one.
fn walk(records: &[u8], head: &BatchHead, now_ms: i64, rules: &Rules) -> Result<i64, Refused> {
    let at = |record: i32, code, message: String| Refused { code, message, records: vec![record] };
    let mut keyless = Vec::new();
    let mut newest = NO_TIMESTAMP;
    let mut walk = Records::new(records, head.record_count);
    for expected in 0..head.record_count {
        let record = match walk.next() {
            Some(Ok(record)) => record,
            Some(Err(e)) => return Err(at(expected, ResponseError::InvalidRecord, e.to_string())),
            None => {
                return Err(at(
                    expected,
                    ResponseError::InvalidRecord,
                    "fewer records than counted".to_owned(),
                ));
            }
        };
        if record.offset_delta != expected {
            return Err(at(
                expected,
                ResponseError::InvalidRecord,
                format!("record {expected} has offset delta {}", record.offset_delta),
            ));
        }
        if rules.keys && record.key.is_none() {
            keyless.push(expected);
        }
        let time = head.base_timestamp.wrapping_add(record.timestamp_delta);
        timestamp(time, now_ms, rules)
            .map_err(|message| at(expected, ResponseError::InvalidTimestamp, message))?;
        newest = newest.max(time);
    }
    if !keyless.is_empty() {
        let message = "Compacted topic cannot accept message without key".to_owned();
        return Err(Refused { code: ResponseError::InvalidRecord, message, records: keyless });
    }
    match walk.rest() {
        0 => Ok(newest),
        n => Err(invalid(format!("{n} bytes after the last of {} records", head.record_count))),
    }
}

fn timestamp(time: i64, now_ms: i64, rules: &Rules) -> Result<(), String> {
    if rules.broker_time || time < 0 {
        return Ok(());
    }
    if time.saturating_sub(now_ms) > rules.after_max_ms {
        return Err(format!(
            "timestamp {time} is more than {} ms after the broker's {now_ms}",
            rules.after_max_ms
        ));
    }
    match rules.before_max_ms {
        Some(before) if now_ms.saturating_sub(time) > before => {
            Err(format!("timestamp {time} is more than {before} ms before the broker's {now_ms}"))
        }
        _ => Ok(()),
    }
}

/// The batch as it is stored on its topic: saying that its timestamps are the client's, and `newest` as the largest of
/// them. It is copied only where it said something else. A topic of broker time stamps it anew anyway.
fn with_right_times(batch: &Bytes, mut head: BatchHead, newest: i64, rules: &Rules) -> (BatchHead, Bytes) {
    let claims_broker = head.attributes & LOG_APPEND_TIME != 0;
    if rules.broker_time || !claims_broker && head.max_timestamp == newest {
        return (head, batch.clone());
    }
    head.attributes &= !LOG_APPEND_TIME;
    head.max_timestamp = newest;
    let mut bytes = BytesMut::from(&batch[..]);
    if let Some(stored) = bytes.first_chunk_mut::<BATCH_HEAD_LEN>() {
        restamp(stored, head.attributes, head.max_timestamp);
    }
    head.crc = crc32c(&[bytes.get(CRC_FROM..).unwrap_or_default()]);
    if let Some(stored) = bytes.first_chunk_mut::<BATCH_HEAD_LEN>() {
        set_crc(stored, head.crc);
    }
    (head, bytes.freeze())
}

/// The records of a stored batch, for looking into: at most 64 times the batch, or 64 MiB.
pub fn stored_records<'a>(batch: &'a [u8], head: &BatchHead) -> Result<Cow<'a, [u8]>, InflateError> {
    inflate(batch, head, batch.len().max(1 << 20).saturating_mul(INFLATED_BATCHES_MAX))
}

#[cfg(test)]
mod tests;
