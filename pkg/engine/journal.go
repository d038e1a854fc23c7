// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

var (
	// ErrJournalDamaged is returned for a journal that holds something else
	// than what was written. Nothing in it is used then: a revocation may be
	// what is damaged.
	ErrJournalDamaged = errors.New("journal is damaged")

	// ErrJournalLocked is returned where another process has the journal open.
	ErrJournalLocked = errors.New("journal is in use by another process")
)

// A journal is an append-only file of records, one a line:
//
//	CRC SP JSON LF
//
// CRC is the Castagnoli CRC-32 of the JSON text in eight hexadecimal digits. The
// JSON is a record; its sequence numbers count up from 1 without a gap, so a
// record that is missing in the middle is noticed. One process at a time has the
// journal open for writing. Every record is on the disk before append returns.
//
// One that has grown past journalSize and holds mostly what can never be active
// again is begun anew when it is opened, with what can; the former is kept beside
// it with the suffix .1, so the two never take much more than twice that. (Not on
// Windows, where an open file cannot be replaced.)
type journal struct {
	file *os.File
	size int64 // the length of all whole records
	last uint64
	// broken is why nothing can be appended any more. After a failed fsync the
	// kernel may have dropped the data and cleared the error, so a second
	// attempt would prove nothing.
	broken error
}

// record is one line: a grant or a revocation.
type record struct {
	Seq    uint64             `json:"seq"`
	Grant  *BoundaryExpansion `json:"grant,omitempty"`
	Revoke *revocation        `json:"revoke,omitempty"`
}

type revocation struct {
	ExpansionID string    `json:"expansionId"`
	RevokedAt   time.Time `json:"revokedAt"`
}

// castagnoli is made when it is first needed: it costs a million instructions, and most commands read no journal.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// journalSize is how many bytes a journal may grow to before what is over in it
// is put aside.
const journalSize = 4 << 20

// maxRecord bounds one line, in bytes.
const maxRecord = 1 << 20

// Recovery is what [OpenRegistry] found that the user should know.
type Recovery struct {
	// Records is how many records were read.
	Records int
	// Dropped is the length of a last record that was cut short, in bytes. It
	// was never acknowledged, and is removed from the file.
	Dropped int
}

// OpenRegistry opens the registry that is kept in the journal at path, and makes
// the journal if there is none. Expansions of the given activation are live,
// those of others are history. Close it to let others write.
//
// A last record that was cut short by a crash is dropped and reported. Any other
// damage is [ErrJournalDamaged], and a second writer gets [ErrJournalLocked],
// both as *fs.PathError.
func OpenRegistry(path string, activation Activation) (*Registry, Recovery, error) {
	return openRegistry(path, activation, journalSize)
}

func openRegistry(path string, activation Activation, size int64) (*Registry, Recovery, error) {
	file, err := openLocked(path)
	if err != nil {
		return nil, Recovery{}, err
	}
	r := NewRegistry(activation)
	recovery, err := r.load(path, file)
	if err != nil {
		file.Close()
		return nil, Recovery{}, err
	}
	if r.journal.size > size && canReplaceOpen {
		r.renew(path)
	}
	return r, recovery, nil
}

// openLocked opens a journal for writing, and makes it if it is missing.
func openLocked(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|openNoFollow, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lock(file); err != nil {
			file.Close()
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		// It may have been put aside between the two.
		here, err := file.Stat()
		if err == nil {
			var there fs.FileInfo
			if there, err = os.Lstat(path); err == nil && os.SameFile(here, there) {
				return file, nil
			}
		}
		file.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// renew begins the journal anew with what is not over, where that is less than
// half of it. Whatever goes wrong, one whole journal is at path: the former one,
// then.
func (r *Registry) renew(path string) {
	var keep []*BoundaryExpansion
	for _, id := range r.order {
		x := r.byID[id]
		if x.Activation.BootID == r.activation.BootID && !x.Revoked && !x.expired(r.now()) {
			keep = append(keep, x)
		}
	}
	if 2*len(keep) > len(r.order) {
		return
	}
	aside := path + ".new"
	os.Remove(aside) // of one who was killed here
	file, err := openLocked(aside)
	if err != nil {
		return
	}
	fresh := &journal{file: file}
	for _, x := range keep {
		if err = fresh.write(record{Grant: x}); err != nil {
			break
		}
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		os.Remove(path + ".1")
		_ = os.Link(path, path+".1") // without the history where links are not to be had
		err = os.Rename(aside, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		file.Close()
		os.Remove(aside)
		return
	}
	r.journal.file.Close()
	r.journal = fresh
}

// load reads the journal into r and makes it r's.
func (r *Registry) load(path string, file *os.File) (Recovery, error) {
	text, err := io.ReadAll(file)
	if err != nil {
		return Recovery{}, err
	}
	records, size, err := parseJournal(text)
	if err == nil {
		err = r.replay(records)
	}
	if err != nil {
		return Recovery{}, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	j := &journal{file: file, size: int64(size), last: uint64(len(records))}
	if err := j.begin(path, len(text)); err != nil {
		return Recovery{}, err
	}
	r.journal = j
	return Recovery{Records: len(records), Dropped: len(text) - size}, nil
}

// begin takes away a torn record and makes sure that the file itself survives a
// crash.
func (j *journal) begin(path string, length int) error {
	if int64(length) != j.size {
		if err := j.file.Truncate(j.size); err != nil {
			return err
		}
	}
	if _, err := j.file.Seek(j.size, io.SeekStart); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// parseJournal returns the records in text and the length of the part they make
// up. What follows is a record that was cut short: it has no newline, or the
// file system gave it a length and no content.
func parseJournal(text []byte) (records []record, size int, err error) {
	for size < len(text) {
		end := bytes.IndexByte(text[size:], '\n')
		if end < 0 {
			if len(text)-size > maxRecord {
				return nil, 0, fmt.Errorf("%w: record %d is too long", ErrJournalDamaged, len(records)+1)
			}
			return records, size, nil
		}
		rec, err := parseRecord(text[size:size+end], uint64(len(records)+1))
		if err != nil {
			return nil, 0, fmt.Errorf("%w: record %d: %w", ErrJournalDamaged, len(records)+1, err)
		}
		records = append(records, rec)
		size += end + 1
	}
	return records, size, nil
}

// parseRecord reads one line without its newline.
func parseRecord(line []byte, seq uint64) (record, error) {
	if len(line) > maxRecord {
		return record{}, errors.New("too long")
	}
	sum, body, ok := bytes.Cut(line, []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !ok || err != nil || len(sum) != 8 {
		return record{}, errors.New("no checksum")
	}
	if crc32.Checksum(body, castagnoli()) != uint32(want) {
		return record{}, errors.New("wrong checksum")
	}
	var rec record
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&rec); err != nil {
		return record{}, err
	}
	switch {
	case dec.More():
		return record{}, errors.New("more than one value")
	case rec.Seq != seq:
		return record{}, fmt.Errorf("sequence number %d, want %d", rec.Seq, seq)
	case (rec.Grant == nil) == (rec.Revoke == nil):
		return record{}, errors.New("neither a grant nor a revocation")
	}
	return rec, nil
}

// replay applies records to an empty registry.
func (r *Registry) replay(records []record) error {
	for _, rec := range records {
		if rec.Grant != nil {
			x := *rec.Grant
			x.ResourceIdentity = pathFrom(x.ResourceIdentity, x.ResourceIdentityBytes)
			if _, ok := r.byID[x.ExpansionID]; ok || x.ExpansionID == "" || x.Revoked {
				return fmt.Errorf("%w: record %d: grant of %q out of place", ErrJournalDamaged, rec.Seq, x.ExpansionID)
			}
			r.add(&x)
			continue
		}
		x, ok := r.byID[rec.Revoke.ExpansionID]
		if !ok || x.Revoked {
			return fmt.Errorf("%w: record %d: revocation of %q out of place", ErrJournalDamaged, rec.Seq, rec.Revoke.ExpansionID)
		}
		x.Revoked, x.RevokedAt = true, new(rec.Revoke.RevokedAt)
	}
	return nil
}

// append writes a record and waits until it is on the disk.
func (j *journal) append(rec record) error {
	if j.broken != nil {
		return j.broken
	}
	size, last := j.size, j.last
	err := j.write(rec)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil && !errors.Is(err, errRecord) {
		j.size, j.last = size, last
		j.broken = fmt.Errorf("journal cannot be written any more: %w", err)
		// If this works the record is gone, if not it has no acknowledgement.
		_ = j.file.Truncate(j.size)
		return j.broken
	}
	return err
}

// errRecord is for a record that no journal can hold.
var errRecord = errors.New("no record of a journal")

// write writes a record, without waiting for the disk.
func (j *journal) write(rec record) error {
	rec.Seq = j.last + 1
	body, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	if len(body) > maxRecord-16 {
		return fmt.Errorf("%w: %d bytes are too long", errRecord, len(body))
	}
	line := fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(body, castagnoli()), body)
	if _, err := j.file.Write(line); err != nil {
		return err
	}
	j.size += int64(len(line))
	j.last = rec.Seq
	return nil
}

// Close releases the journal. Afterwards the registry can still be asked, but
// not changed.
func (r *Registry) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.journal == nil || errors.Is(r.journal.broken, fs.ErrClosed) {
		return nil
	}
	r.journal.broken = fs.ErrClosed
	return r.journal.file.Close()
}

// ReadExpansions returns what the journal at path holds, oldest first, without
// locking or changing it. A record that is being written is left out.
func ReadExpansions(path string) ([]BoundaryExpansion, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := NewRegistry(Activation{})
	records, _, err := parseJournal(text)
	if err == nil {
		err = r.replay(records)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return r.List(), nil
}
