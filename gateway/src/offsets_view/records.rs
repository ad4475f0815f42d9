//! Keys and values of `__consumer_offsets`, as Kafka's group coordinator writes them and tools read them: big-endian,
//! texts and bytes with their length in front, each after a version of 2 bytes.
//!
//! ```text
//! OffsetCommitKey 1     group, topic, partition 4
//! OffsetCommitValue 3   offset 8, leader epoch 4, metadata, commit time 8
//!                   1   offset 8, metadata, commit time 8, expire time 8     of clients that give a retention time
//! GroupMetadataKey 2    group
//! GroupMetadataValue 3  protocol type, generation 4, protocol, leader, since 8, members 4 × (member id, instance id,
//!                       client id, client host, rebalance timeout 4, session timeout 4, subscription, assignment)
//! ```
//! Source: Kafka, `group-coordinator/src/main/resources/common/message`.

use crate::groups::{MemberImage, Position, Row, Shown};
use bytes::{BufMut, Bytes, BytesMut};

/// A record's key, and its value: none where the key is gone.
pub(super) type Encoded = (Bytes, Option<Bytes>);

/// `None` for what has no place in the format: a text of more than 32,767 bytes.
pub(super) fn encode(row: &Row) -> Option<Encoded> {
    match &row.what {
        Shown::Offset(topic, partition, position) => {
            let mut key = Fields::of_version(1);
            key.text(&row.group)?;
            key.text(topic)?;
            key.0.put_i32(*partition);
            let value = match position {
                Some(position) => Some(offset(position)?),
                None => None,
            };
            Some((key.done(), value))
        }
        Shown::Group(image) => {
            let mut key = Fields::of_version(2);
            key.text(&row.group)?;
            let value = match image {
                Some(image) => Some(group(image)?),
                None => None,
            };
            Some((key.done(), value))
        }
    }
}

fn offset(position: &Position) -> Option<Bytes> {
    let version = if position.expires_at.is_some() { 1 } else { 3 };
    let mut value = Fields::of_version(version);
    value.0.put_i64(position.offset);
    if version >= 3 {
        value.0.put_i32(position.leader_epoch);
    }
    value.text(&position.metadata)?;
    value.0.put_i64(position.committed_at);
    if let Some(at) = position.expires_at {
        value.0.put_i64(at);
    }
    Some(value.done())
}

fn group(image: &crate::groups::GroupImage) -> Option<Bytes> {
    let mut value = Fields::of_version(3);
    value.text(image.protocol_type.as_deref().unwrap_or_default())?;
    value.0.put_i32(image.generation);
    value.optional(image.protocol.as_deref())?;
    value.optional(image.leader.as_deref())?;
    value.0.put_i64(image.changed_at);
    value.0.put_i32(i32::try_from(image.members.len()).ok()?);
    for (id, member) in &image.members {
        put_member(&mut value, id, member, image.protocol.as_deref().unwrap_or_default())?;
    }
    Some(value.done())
}

fn put_member(value: &mut Fields, id: &str, member: &MemberImage, protocol: &str) -> Option<()> {
    let info = &member.info;
    value.text(id)?;
    value.optional(info.instance_id.as_deref())?;
    value.text(&info.client_id)?;
    value.text(&info.client_host)?;
    value.0.put_i32(i32::try_from(info.rebalance_timeout_ms).ok()?);
    value.0.put_i32(i32::try_from(info.session_timeout_ms).ok()?);
    value.bytes(info.metadata(protocol).map_or(&[], |blob| &blob.0))?;
    value.bytes(&member.assignment.0)
}

/// Fields one after the other; `None` where one does not fit.
struct Fields(BytesMut);

impl Fields {
    fn of_version(version: i16) -> Fields {
        let mut bytes = BytesMut::with_capacity(64);
        bytes.put_i16(version);
        Fields(bytes)
    }

    fn text(&mut self, text: &str) -> Option<()> {
        self.0.put_i16(i16::try_from(text.len()).ok()?);
        self.0.put_slice(text.as_bytes());
        Some(())
    }

    fn optional(&mut self, text: Option<&str>) -> Option<()> {
        match text {
            Some(text) => self.text(text),
            None => {
                self.0.put_i16(-1);
                Some(())
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        self.0.put_i32(i32::try_from(bytes.len()).ok()?);
        self.0.put_slice(bytes);
        Some(())
    }

    fn done(self) -> Bytes {
        self.0.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::{Blob, GroupImage, MemberInfo};
    use rangeway_core::replicated::Shared;
    use std::sync::Arc;

    fn row(what: Shown) -> Row {
        Row { number: 0, at: 0, group: "g".to_owned(), what }
    }

    fn position() -> Position {
        Position {
            offset: 42,
            leader_epoch: 7,
            metadata: "m".to_owned(),
            committed_at: 0x0102,
            expires_at: None,
        }
    }

    #[test]
    fn an_offset_is_laid_out_as_kafka_does() {
        let of = |position| encode(&row(Shown::Offset(Arc::from("t"), 3, position))).expect("it fits");
        let key = [0, 1, 0, 1, b'g', 0, 1, b't', 0, 0, 0, 3];
        let (got_key, value) = of(Some(position()));
        assert_eq!(got_key[..], key);
        let v3 =
            [&[0, 3][..], &42i64.to_be_bytes(), &7i32.to_be_bytes(), &[0, 1, b'm'], &0x0102i64.to_be_bytes()];
        assert_eq!(value.expect("a value")[..], v3.concat());
        let (_, value) = of(Some(Position { expires_at: Some(9), ..position() }));
        let v1 =
            [&[0, 1][..], &42i64.to_be_bytes(), &[0, 1, b'm'], &0x0102i64.to_be_bytes(), &9i64.to_be_bytes()];
        assert_eq!(value.expect("a value")[..], v1.concat());
        let (gone_key, value) = of(None);
        assert_eq!((&gone_key[..], value), (&key[..], None));
    }

    #[test]
    fn a_group_is_laid_out_as_kafka_does() {
        let member = MemberImage {
            info: MemberInfo {
                instance_id: None,
                client_id: "c".to_owned(),
                client_host: "/h".to_owned(),
                rebalance_timeout_ms: 300,
                session_timeout_ms: 10,
                protocols: vec![("range".to_owned(), Blob(Bytes::from_static(b"sub")))],
            },
            assignment: Blob(Bytes::from_static(b"as")),
        };
        let image = GroupImage {
            protocol_type: Some("consumer".to_owned()),
            generation: 5,
            protocol: Some("range".to_owned()),
            leader: Some("m1".to_owned()),
            members: [("m1".to_owned(), member)].into(),
            changed_at: 8,
            ..GroupImage::default()
        };
        let (key, value) = encode(&row(Shown::Group(Some(Shared::new(image))))).expect("it fits");
        assert_eq!(key[..], [0, 2, 0, 1, b'g']);
        let expected = [
            &b"\0\x03\0\x08consumer\0\0\0\x05\0\x05range\0\x02m1"[..],
            &8i64.to_be_bytes(),
            b"\0\0\0\x01\0\x02m1\xff\xff\0\x01c\0\x02/h",
            &300i32.to_be_bytes(),
            &10i32.to_be_bytes(),
            b"\0\0\0\x03sub\0\0\0\x02as",
        ];
        assert_eq!(value.expect("a value")[..], expected.concat());
        let empty = GroupImage { protocol_type: Some("consumer".to_owned()), ..GroupImage::default() };
        let (_, value) = encode(&row(Shown::Group(Some(Shared::new(empty))))).expect("it fits");
        let expected = [&b"\0\x03\0\x08consumer\0\0\0\0\xff\xff\xff\xff"[..], &[0; 8], &[0; 4]];
        assert_eq!(value.expect("a value")[..], expected.concat());
    }

    #[test]
    fn a_name_that_is_too_long_for_the_format_is_left_out() {
        let long = Row { group: "g".repeat(40_000), ..row(Shown::Group(None)) };
        assert_eq!(encode(&long), None);
    }
}
