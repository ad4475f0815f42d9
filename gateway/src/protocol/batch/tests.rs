//! Protocol.md's table of bad batches, case by case; codecs; the walk.

use super::*;
use std::io::Write;

/// Now, in these tests.
const NOW: i64 = 1_700_000_000_000;
const RULES: Rules = Rules {
    bytes_max: 1_048_588,
    keys: false,
    broker_time: false,
    before_max_ms: None,
    after_max_ms: 3_600_000,
    compression: None,
    opened: false,
};

/// One record as encoded.
fn record(delta: i32, time: i64, key: Option<&[u8]>, value: &[u8]) -> Vec<u8> {
    fn put(out: &mut Vec<u8>, value: i64) {
        let mut raw = ((value << 1) ^ (value >> 63)) as u64;
        while raw >= 0x80 {
            out.push(raw as u8 | 0x80);
            raw >>= 7;
        }
        out.push(raw as u8);
    }
    let mut body = vec![0];
    put(&mut body, time);
    put(&mut body, i64::from(delta));
    match key {
        None => put(&mut body, -1),
        Some(key) => {
            put(&mut body, key.len() as i64);
            body.extend(key);
        }
    }
    put(&mut body, value.len() as i64);
    body.extend(value);
    put(&mut body, 1);
    put(&mut body, 1);
    body.push(b'h');
    put(&mut body, -1);
    let mut out = Vec::new();
    put(&mut out, body.len() as i64);
    out.extend(body);
    out
}

fn open_records(n: i32) -> Vec<u8> {
    (0..n).flat_map(|i| record(i, i64::from(i), Some(b"k"), b"value")).collect()
}

/// A batch of `n` records around `section`; `change` edits the bytes before length and CRC are set.
fn batch(n: i32, codec: i16, section: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut b = vec![0; 61];
    b[16] = 2;
    b[21..23].copy_from_slice(&codec.to_be_bytes());
    b[23..27].copy_from_slice(&(n - 1).to_be_bytes());
    b[27..35].copy_from_slice(&NOW.to_be_bytes());
    b[35..43].copy_from_slice(&(NOW + i64::from(n) - 1).to_be_bytes());
    b[43..51].copy_from_slice(&(-1i64).to_be_bytes());
    b[51..53].copy_from_slice(&(-1i16).to_be_bytes());
    b[53..57].copy_from_slice(&(-1i32).to_be_bytes());
    b[57..61].copy_from_slice(&n.to_be_bytes());
    b.extend_from_slice(section);
    let length = b.len() as i32 - 12;
    b[8..12].copy_from_slice(&length.to_be_bytes());
    change(&mut b);
    let crc = crc32c(&[&b[21..]]);
    b[17..21].copy_from_slice(&crc.to_be_bytes());
    Bytes::from(b)
}

fn plain(change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    batch(3, 0, &open_records(3), change)
}

fn code(records: &Bytes, rules: &Rules) -> i16 {
    check(Some(records), 9, NOW, rules).map_or_else(|r| r.code.code(), |_| 0)
}

fn set(at: usize, bytes: impl AsRef<[u8]>) -> impl FnOnce(&mut Vec<u8>) {
    move |b| b[at..at + bytes.as_ref().len()].copy_from_slice(bytes.as_ref())
}

#[test]
fn each_bad_batch_gets_kafkas_code() {
    let good = plain(|_| ());
    let mut flipped = good.to_vec();
    flipped[70] ^= 1;
    let twice = [&good[..], &good[..]].concat();
    let cases: Vec<(&str, Bytes, i16)> = vec![
        ("good", good.clone(), 0),
        ("bad crc", flipped.into(), 2),
        ("old magic", plain(set(16, [1])), 87),
        ("two batches", twice.into(), 87),
        ("no batch", Bytes::new(), 87),
        ("cut short", good.slice(..good.len() - 3), 87),
        ("shorter than a head", good.slice(..20), 87),
        ("base offset", plain(set(0, 5i64.to_be_bytes())), 87),
        ("leader epoch is ignored", plain(set(12, 77i32.to_be_bytes())), 0),
        ("control", plain(set(21, 0x20i16.to_be_bytes())), 87),
        ("count", plain(set(57, 4i32.to_be_bytes())), 87),
        ("last offset delta", plain(set(23, 3i32.to_be_bytes())), 87),
        (
            "count and delta beyond the records",
            plain(|b| {
                set(57, 4i32.to_be_bytes())(b);
                set(23, 3i32.to_be_bytes())(b);
            }),
            87,
        ),
        (
            "count and delta below the records",
            plain(|b| {
                set(57, 2i32.to_be_bytes())(b);
                set(23, 1i32.to_be_bytes())(b);
            }),
            87,
        ),
        (
            "no records",
            plain(|b| {
                set(57, 0i32.to_be_bytes())(b);
                set(23, (-1i32).to_be_bytes())(b);
            }),
            87,
        ),
        (
            "producer without sequence",
            plain(|b| {
                set(43, 7i64.to_be_bytes())(b);
                set(51, 0i16.to_be_bytes())(b);
            }),
            87,
        ),
        ("future", plain(set(27, (NOW + 7_200_000).to_be_bytes())), 32),
        (
            "no timestamp",
            plain(|b| {
                set(27, (-3i64).to_be_bytes())(b);
                set(35, (-1i64).to_be_bytes())(b);
            }),
            0,
        ),
        ("codec 7", plain(set(21, 7i16.to_be_bytes())), -1),
        ("gzip bit on open records", plain(set(21, 1i16.to_be_bytes())), -1),
    ];
    for (name, records, want) in cases {
        assert_eq!(code(&records, &RULES), want, "{name}");
    }
    assert_eq!(check(None, 9, NOW, &RULES).unwrap_err().code.code(), 87, "null");
    assert_eq!(code(&good, &Rules { bytes_max: good.len() - 1, ..RULES }), 10, "too large");
    assert_eq!(code(&good, &Rules { bytes_max: good.len(), ..RULES }), 0, "exactly as large as allowed");
}

#[test]
fn zstd_needs_version_7() {
    let packed = zstd::stream::encode_all(&open_records(3)[..], 3).unwrap();
    let records = batch(3, 4, &packed, |_| ());
    assert_eq!(check(Some(&records), 6, NOW, &RULES).unwrap_err().code.code(), 76);
    assert!(check(Some(&records), 7, NOW, &RULES).is_ok());
}

#[test]
fn the_record_at_fault_is_named() {
    let section = [record(0, 0, Some(b"k"), b"v"), record(1, 0, None, b"v")].concat();
    let records = batch(2, 0, &section, |_| ());
    let refused = check(Some(&records), 9, NOW, &Rules { keys: true, ..RULES }).unwrap_err();
    assert_eq!((refused.code.code(), refused.records), (87, vec![1]));
    let late = batch(2, 0, &[record(0, 0, None, b""), record(1, 4_000_000, None, b"")].concat(), |_| ());
    let refused = check(Some(&late), 9, NOW, &RULES).unwrap_err();
    assert_eq!((refused.code.code(), refused.records), (32, vec![1]));
    let early = Rules { before_max_ms: Some(1000), ..RULES };
    assert_eq!(code(&plain(set(27, (NOW - 5000).to_be_bytes())), &early), 32);
}

#[test]
fn a_batch_that_claims_broker_time_is_stored_with_client_time_and_a_right_crc() {
    let records = plain(set(21, LOG_APPEND_TIME.to_be_bytes()));
    let (head, stored) = check(Some(&records), 9, NOW, &RULES).unwrap();
    assert_eq!(head.attributes, 0);
    assert_eq!(BatchHead::parse(&stored), Some(head));
    assert_eq!(code(&stored, &RULES), 0);
    let (_, kept) = check(Some(&records), 9, NOW, &Rules { broker_time: true, ..RULES }).unwrap();
    assert_eq!(kept, records, "a topic of broker time stamps it anew anyway");
}

/// Heads that say another largest timestamp than [`open_records`] have: too early, none, too late.
const WRONG: [i64; 3] = [5, -1, NOW + 3_500_000];

#[test]
fn a_head_that_says_another_largest_timestamp_is_stored_with_the_right_one() {
    for claimed in WRONG {
        for to in [None, Some(Compression::Gzip(-1))] {
            let rules = Rules { compression: to, ..RULES };
            let records = plain(set(35, claimed.to_be_bytes()));
            let (head, stored) = check(Some(&records), 9, NOW, &rules).unwrap();
            assert_eq!(head.max_timestamp, NOW + 2, "{claimed} {to:?}");
            assert_eq!(BatchHead::parse(&stored), Some(head));
            assert_eq!(code(&stored, &RULES), 0, "its CRC is right: {claimed} {to:?}");
            let right = check(Some(&plain(|_| ())), 9, NOW, &rules).unwrap();
            assert_eq!(stored, right.1, "and all else as it was sent");
        }
        let broker = Rules { broker_time: true, ..RULES };
        let records = plain(set(35, claimed.to_be_bytes()));
        assert_eq!(check(Some(&records), 9, NOW, &broker).unwrap().1, records, "stamped anew anyway");
    }
    let none = batch(1, 0, &record(0, 0, None, b"v"), |b| {
        set(27, (-7i64).to_be_bytes())(b);
        set(35, NOW.to_be_bytes())(b);
    });
    assert_eq!(check(Some(&none), 9, NOW, &RULES).unwrap().0.max_timestamp, -1, "no record has a timestamp");
    let right = plain(|_| ());
    let stored = check(Some(&right), 9, NOW, &RULES).unwrap().1;
    assert_eq!(stored.as_ptr(), right.as_ptr(), "what is right is not copied");
}

#[test]
fn a_compressed_batch_is_opened_when_its_head_says_less_than_its_first_timestamp() {
    let compressed = |claimed: i64| batch(3, 1, &packed(1, &open_records(3)), set(35, claimed.to_be_bytes()));
    for claimed in [5, -1, NOW - 1] {
        let records = compressed(claimed);
        assert!(is_looked_into(&records, &RULES), "{claimed}");
        let (head, stored) = check(Some(&records), 9, NOW, &RULES).unwrap();
        assert_eq!((head.max_timestamp, head.codec()), (NOW + 2, 1), "{claimed}");
        assert_eq!((BatchHead::parse(&stored), code(&stored, &RULES)), (Some(head), 0), "{claimed}");
    }
    // What it may claim otherwise is bounded.
    assert!(!is_looked_into(&compressed(NOW + 3_600_000), &RULES));
    assert_eq!(code(&compressed(NOW + 3_600_000), &RULES), 0);
    assert_eq!(code(&compressed(NOW + 3_600_001), &RULES), 32);
    let opened = Rules { keys: true, ..RULES };
    let stored = check(Some(&compressed(NOW + 3_600_000)), 9, NOW, &opened).unwrap();
    assert_eq!(stored.0.max_timestamp, NOW + 2, "right where it is opened for another rule");
}

fn packed(codec: i16, open: &[u8]) -> Vec<u8> {
    match codec {
        1 => {
            let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            e.write_all(open).unwrap();
            e.finish().unwrap()
        }
        2 => snap::raw::Encoder::new().compress_vec(open).unwrap(),
        20 => {
            let mut out = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
            for chunk in open.chunks(1000) {
                let block = snap::raw::Encoder::new().compress_vec(chunk).unwrap();
                out.extend((block.len() as u32).to_be_bytes());
                out.extend(block);
            }
            out
        }
        3 => {
            let mut e = lz4::EncoderBuilder::new().build(Vec::new()).unwrap();
            e.write_all(open).unwrap();
            e.finish().0
        }
        _ => zstd::stream::encode_all(open, 3).unwrap(),
    }
}

#[test]
fn every_codec_is_inflated_to_what_went_in_and_bounded() {
    let open = open_records(500);
    for codec in [1, 2, 20, 3, 4] {
        let wire = if codec == 20 { 2 } else { codec };
        let records = batch(500, wire, &packed(codec, &open), |_| ());
        let head = BatchHead::parse(&records).unwrap();
        assert_eq!(inflate(&records, &head, open.len()).unwrap(), &open[..], "codec {codec}");
        assert!(inflate(&records, &head, open.len() - 1).is_err(), "codec {codec}");
        assert_eq!(code(&records, &Rules { keys: true, ..RULES }), 0, "codec {codec}");
        let cut = batch(500, wire, &packed(codec, &open)[..20], |_| ());
        assert_ne!(code(&cut, &Rules { keys: true, ..RULES }), 0, "codec {codec} cut");
    }
}

#[test]
fn a_batch_of_another_codec_is_compressed_anew_and_keeps_its_records() {
    let open = open_records(500);
    let anew = [
        Compression::None,
        Compression::Gzip(-1),
        Compression::Gzip(9),
        Compression::Snappy,
        Compression::Lz4(9),
        Compression::Zstd(3),
    ];
    for from in [0, 1, 20, 3, 4] {
        let wire = if from == 20 { 2 } else { from };
        let section = if from == 0 { open.clone() } else { packed(from, &open) };
        let sent = batch(500, wire, &section, set(51, 7i16.to_be_bytes()));
        for to in anew {
            let rules = Rules { compression: Some(to), ..RULES };
            let (head, stored) = check(Some(&sent), 9, NOW, &rules).unwrap();
            assert_eq!(BatchHead::parse(&stored), Some(head));
            assert_eq!((head.codec(), head.record_count, head.producer_epoch), (compress::codec(to), 500, 7));
            assert_eq!(code(&stored, &RULES), 0, "length and CRC are right: {from} to {to:?}");
            assert_eq!(inflate(&stored, &head, open.len()).unwrap(), &open[..], "{from} to {to:?}");
            assert_eq!(stored == sent, wire == compress::codec(to), "{from} to {to:?}");
        }
    }
}

#[test]
fn what_is_compressed_anew_is_looked_at_and_measured() {
    let zstd = Rules { compression: Some(Compression::Zstd(3)), keys: true, ..RULES };
    let keyless = batch(1, 1, &packed(1, &record(0, 0, None, b"v")), |_| ());
    assert_eq!(code(&keyless, &zstd), 87);
    assert_eq!(code(&batch(2, 1, &packed(1, &open_records(1)), |_| ()), &zstd), 87, "fewer than counted");
    assert_eq!(code(&batch(1, 1, b"\x1f\x8bno gzip", |_| ()), &zstd), -1);
    let small = batch(500, 1, &packed(1, &open_records(500)), |_| ());
    let plain = Rules { compression: Some(Compression::None), bytes_max: small.len(), ..RULES };
    assert_eq!(code(&small, &plain), 10, "what it grows to counts");
    let claims = batch(3, 1 | LOG_APPEND_TIME, &packed(1, &open_records(3)), |_| ());
    let (head, stored) = check(Some(&claims), 9, NOW, &zstd).unwrap();
    assert_eq!((head.attributes, BatchHead::parse(&stored)), (4, Some(head)));
}

#[test]
fn a_bomb_is_too_large_and_is_not_unpacked() {
    let rules = Rules { keys: true, bytes_max: 100_000, ..RULES };
    let anew = Rules { compression: Some(Compression::None), bytes_max: 100_000, ..RULES };
    let zeroes = vec![0; 8 << 20];
    for (codec, wire) in [(1, 1), (20, 2), (3, 3), (4, 4)] {
        // A stream of snappy blocks is no smaller than that, so its blocks are many.
        let (rules, anew, zeroes) = match codec {
            20 => (Rules { bytes_max: 1000, ..rules }, Rules { bytes_max: 1000, ..anew }, &zeroes[..70_000]),
            _ => (rules, anew, &zeroes[..]),
        };
        let packed = packed(codec, zeroes);
        let records = batch(1, wire, &packed, |_| ());
        for rules in [rules, anew] {
            // Looked into although the batch itself is larger than what the topic takes.
            let refused = contents_of(&records, &rules);
            assert_eq!(refused.code, ResponseError::MessageTooLarge, "codec {codec}");
            let most = rules.bytes_max * 64;
            assert!(refused.message.contains(&format!("more than {most} bytes")), "{}", refused.message);
        }
    }
    let mut claim = snap::raw::Encoder::new().compress_vec(b"x").unwrap();
    claim.splice(0..1, [0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert_eq!(code(&batch(1, 2, &claim, |_| ()), &Rules { keys: true, ..RULES }), -1, "a false claim");
}

/// With a right CRC: what only whoever opens the batch can see.
#[test]
fn an_inside_that_no_consumer_could_read_is_refused_where_the_topic_has_batches_opened() {
    let opened = Rules { opened: true, ..RULES };
    for codec in 1..=4 {
        let whole = packed(codec, &open_records(3));
        let sound = batch(3, codec, &whole, |_| ());
        assert_eq!(check(Some(&sound), 9, NOW, &opened).expect("sound").1, sound, "codec {codec}");
        let cut = batch(3, codec, &whole[..whole.len() / 2], |_| ());
        let malformed = batch(3, codec, &packed(codec, b"no records at all"), |_| ());
        let fewer = batch(4, codec, &whole, |_| ());
        let more = batch(2, codec, &whole, |_| ());
        let twice = batch(3, codec, &packed(codec, &record(0, 0, None, b"v").repeat(3)), |_| ());
        for (records, expected) in [(cut, -1), (malformed, 87), (fewer, 87), (more, 87), (twice, 87)] {
            assert_eq!(code(&records, &RULES), 0, "codec {codec}: by its head it is sound");
            assert_eq!(code(&records, &opened), expected, "codec {codec}");
            assert!(is_looked_into(&records, &opened) && !is_looked_into(&records, &RULES));
        }
    }
}

#[test]
fn an_lz4_frame_without_its_end_is_damaged_although_all_records_come_out() {
    let whole = packed(3, &open_records(3));
    let opened = Rules { opened: true, ..RULES };
    assert_eq!(code(&batch(3, 3, &whole, |_| ()), &opened), 0);
    // As Kafka, whose reader looks for the end behind the last record.
    for cut in 1..whole.len() {
        let batch = batch(3, 3, &whole[..whole.len() - cut], |_| ());
        if !batch[61..].is_empty() && code(&batch, &RULES) == 0 {
            assert_eq!(code(&batch, &opened), -1, "{cut} bytes short");
        }
    }
}

/// What inflating the records of a batch comes to.
fn contents_of(records: &Bytes, rules: &Rules) -> Refused {
    let head = BatchHead::parse(records).unwrap();
    match rules.compression {
        Some(to) => compressed_anew(records, head, to, NOW, rules).map(|_| ()).unwrap_err(),
        None => contents(records, &head, NOW, rules).unwrap_err(),
    }
}

#[test]
fn what_may_come_out_of_a_batch_is_bounded_whatever_the_topic_takes() {
    let most = |bytes_max| inflated_max(&Rules { bytes_max, ..RULES });
    assert_eq!(most(1_048_588), 64 * 1_048_588);
    assert_eq!(most(100 << 20), 256 << 20);
    assert_eq!(most(1 << 30), 1 << 30, "open records of that size are taken too");
}

#[test]
fn a_batch_of_any_codec_is_taken_apart_and_keeps_its_codec() {
    use rangeway_core::api::records::{OpenBatch, RecordCodec};
    let n = 40;
    let open = open_records(n);
    for codec in 0..=4 {
        let section = if codec == 0 { open.clone() } else { packed(codec, &open) };
        let before = batch(n, codec, &section, |_| ());
        let laid_open = OpenBatch::new(&before, &Codecs, 1 << 20).unwrap();
        let keep: Vec<bool> = (0..n).map(|i| i % 3 == 0).collect();
        for horizon in [None, Some(NOW + 77)] {
            let after = laid_open.rewrite(&Codecs, &keep, horizon).unwrap();
            let head = BatchHead::parse(&after.bytes).unwrap();
            assert_eq!((head.codec(), head.record_count, head.last_offset_delta), (codec, 14, n - 1));
            assert_eq!(crc32c(&[&after.bytes[CRC_FROM..]]), head.crc);
            assert_eq!(head.batch_length as usize + 12, after.bytes.len());
            let records = inflate(&after.bytes, &head, 1 << 20).unwrap();
            let kept: Vec<_> = Records::new(&records, head.record_count).collect::<Result<_, _>>().unwrap();
            let shown = kept.iter().map(|r| (r.offset_delta, head.base_timestamp + r.timestamp_delta));
            assert!(shown.eq((0..n).step_by(3).map(|i| (i, NOW + i64::from(i)))), "codec {codec}");
            assert!(kept.iter().all(|r| r.key == Some(b"k") && r.value == Some(b"value")));
            assert_eq!(head.max_timestamp, NOW + i64::from(n - 1));
            assert_eq!(head.base_timestamp, horizon.unwrap_or(NOW));
        }
    }
    assert!(Codecs.unpack(1, &packed(1, &vec![0; 1 << 20]), 1000).is_err(), "more than it may grow to");
    assert!(Codecs.unpack(7, b"", 1000).is_err() && Codecs.pack(7, b"").is_err());
}

#[test]
fn the_walk_lends_what_is_there() {
    let open = open_records(2);
    let all: Vec<_> = Records::new(&open, 2).collect::<Result<_, _>>().unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!((all[1].offset_delta, all[1].timestamp_delta), (1, 1));
    assert_eq!((all[1].key, all[1].value), (Some(&b"k"[..]), Some(&b"value"[..])));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_checks_panic(bytes: Vec<u8>, crc: bool, n in -2i32..5) {
        let mut b = batch(1, 0, &bytes, |_| ()).to_vec();
        if n >= 0 && let Some(at) = b.get_mut(21 + n as usize) { *at = bytes.len() as u8 }
        if crc { let c = crc32c(&[&b[21..]]); b[17..21].copy_from_slice(&c.to_be_bytes()) }
        let _ = check(Some(&Bytes::from(b)), 9, NOW, &Rules { keys: true, ..RULES });
        let _ = check(Some(&Bytes::from(bytes.clone())), 9, NOW, &RULES);
        let _ = Records::new(&bytes, n).count();
    }
}
