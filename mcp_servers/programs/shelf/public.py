"""Services of transport, care, learning and leisure. `descriptions.py` explains their format."""

DESCRIPTIONS = """
service fleet | The company's cars and vans.
record vehicle VE plate
plate code(LIC) | Licence plate.
model mix(white|blue|long|electric, van|estate|minibus|pickup) | What kind of car.
driver person | Who drives it.
depot city | Where it stands at night.
mileage int(1000..180000) | Kilometres on the clock.
states in_service in_workshop sold
find_vehicle find | Look a company car up by its licence plate.
get_vehicle get | Model, driver, depot and mileage of one company car.
list_vehicles list depot | Company cars, all or of one depot.
register_vehicle create plate,model,driver,depot,mileage | Enter a company car that was bought.
assign_driver set driver | Hand a company car over to somebody.
move_vehicle set depot | Let a company car stand elsewhere at night.
record_mileage set mileage | Note what the clock of a company car shows.
send_to_workshop move in_service in_workshop | Have a company car repaired.
return_from_workshop move in_workshop in_service | Use a repaired company car again.
sell_vehicle move in_service,in_workshop sold | Part with a company car.

service parcels | Parcels on their way to customers.
record parcel PA number
number code(PCL) | Number of the parcel.
addressee person | Who gets it.
city city | Where to.
weight_g int(100..20000) | Grams.
courier person | Who carries it.
states packed on_the_way delivered lost
find_parcel find | Look a parcel up by its number.
get_parcel get | Addressee, city, weight and courier of one parcel.
list_parcels list city | Parcels, all or to one city.
dispatch_parcel create number,addressee,city,weight_g,courier | Hand a new parcel in.
redirect_parcel set city | Send a parcel to another city.
change_courier set courier | Have somebody else carry a parcel.
correct_weight set weight_g | Mend the grams of a parcel.
ship_parcel move packed on_the_way | Let a parcel leave.
confirm_delivery move on_the_way delivered | Note that the addressee has a parcel.
report_parcel_lost move on_the_way lost | Note that nobody can find a parcel.

service clinic | Appointments at a doctor's practice.
record appointment AT patient
patient person | Who comes.
doctor person | Who is seen.
day day | When.
reason one(checkup|vaccination|pain|results) | Why.
length_min int(10..60) | Minutes.
states booked seen missed
find_appointment find | Look a doctor's appointment up by the patient.
get_appointment get | Doctor, day, reason and length of one appointment.
list_appointments list doctor | Appointments, all or with one doctor.
book_appointment create patient,doctor,day,reason,length_min | Give a patient a time with a doctor.
move_appointment set day | See a patient on another day.
change_doctor set doctor | Have a patient seen by somebody else.
set_appointment_length set length_min | Plan more or fewer minutes for a patient.
mark_patient_seen move booked seen | Note that a patient was with the doctor.
mark_no_show move booked missed | Note that a patient did not come.

service prescriptions | Medicine that doctors have prescribed.
record prescription RX number
number code(RXN) | On the slip.
patient person | Who takes it.
drug mix(Coro|Neo|Pan|Vita, derm|mycin|sol|lax) | Which medicine.
dose_mg int(5..800) | Milligrams a day.
repeats int(0..6) | How often it may be fetched again.
states issued dispensed void
find_prescription find | Look a prescription up by the number on the slip.
get_prescription get | Patient, medicine, dose and repeats of one prescription.
list_prescriptions list drug | Prescriptions, all or of one medicine.
prescribe create number,patient,drug,dose_mg,repeats | Write a new prescription.
adjust_dose set dose_mg | Let a patient take more or less of a medicine a day.
set_repeats set repeats | Change how often a medicine may be fetched again.
dispense move issued dispensed | Hand the medicine out.
void_prescription move issued void | Declare a prescription invalid.

service vet | Animals that are treated at a veterinary practice.
record animal AN name
name mix(Mister|Lady|Little|Captain, Whiskers|Paws|Bark|Fluff) | What the animal is called.
species one(cat|dog|rabbit|parrot|turtle) | What it is.
owner person | Whose it is.
weight_g int(200..40000) | Grams.
vaccinated day | When last.
states well ill healed
find_animal find | Look an animal up by name.
get_animal get | Species, owner, weight and vaccination of one animal.
list_animals list species | Animals, all or of one species.
admit_animal create name,species,owner,weight_g,vaccinated | Enter a new animal.
record_animal_weight set weight_g | Note what an animal weighs today.
record_vaccination set vaccinated | Note when an animal got its shot.
change_animal_owner set owner | Note who keeps an animal now.
diagnose_illness move well,healed ill | Note that an animal is unwell.
discharge_animal move ill healed | Send a cured animal home.

service library | Books that can be borrowed.
record book BO title
title mix(The Silent|The Last|A Golden|An Empty, Harbour|Orchard|Winter|Lantern) | Title of the book.
author person | Who wrote it.
reader person | Who has it, or had it last.
due day | When it must be back.
shelf code(SHE) | Where it stands.
states available on_loan lost
find_book find | Look a book up by its title.
get_book get | Author, reader, due date and shelf of one book.
list_books list author | Books, all or by one author.
acquire_book create title,author,shelf | Add a new book to the library.
lend_book move available on_loan reader,due | Give a book to a reader until a date.
take_book_back move on_loan available | Note that a reader has brought a book back.
extend_loan set due | Let a reader keep a book longer.
reshelve_book set shelf | Put a book in another place.
report_book_lost move available,on_loan lost | Note that a book cannot be found.

service courses | Lectures of a university.
record course CO title
title mix(Applied|Modern|Early|Comparative, Physics|History|Botany|Logic|Painting) | Name of the lecture.
lecturer person | Who teaches.
credits int(1..12) | Points that students earn.
places int(10..300) | Students at most.
campus city | Where.
states enrolling running ended
find_course find | Look a lecture up by its title.
get_course get | Lecturer, credits, places and campus of one lecture.
list_courses list campus | Lectures, all or on one campus.
announce_course create title,lecturer,credits,places,campus | Offer a new lecture to students.
change_lecturer set lecturer | Have somebody else give a lecture.
set_course_credits set credits | Let students earn other points in a lecture.
set_course_places set places | Admit more or fewer students to a lecture.
start_course move enrolling running | Begin a lecture.
end_course move running ended | Finish a lecture.

service exams | Examinations of students.
record exam EM student
student person | Who is examined.
subject one(physics|history|botany|logic|law) | In what.
day day | When.
points int(0..100) | Result.
examiner person | Who asks.
states registered graded absent
find_exam find | Look an examination up by the student.
get_exam get | Subject, day, points and examiner of one examination.
list_exams list subject | Examinations, all or in one subject.
register_for_exam create student,subject,day,examiner | Put a student down for an examination.
grade_exam move registered graded points | Note the points a student has got.
regrade_exam set points | Correct the points of an examination.
replace_examiner set examiner | Have a student examined by somebody else.
move_exam set day | Examine a student on another day.
record_absence move registered absent | Note that a student was not there.

service gym | Members of a sports club.
record membership GY member
member person | Who is in the club.
plan one(basic|plus|family|student) | What is paid for.
monthly money(15..90) | Euros a month.
trainer person | Who advises the member.
until day | End of the membership.
states active frozen ended
find_membership find | Look a club member up by name.
get_membership get | Plan, price, trainer and end of one membership.
list_memberships list plan | Memberships, all or of one plan.
enrol_member create member,plan,monthly,trainer,until | Take somebody into the sports club.
change_membership_plan set plan | Let a member pay for something else.
prolong_membership set until | Let a membership end later.
assign_trainer set trainer | Have a member advised by somebody else.
freeze_membership move active frozen | Interrupt a membership, for instance for an injury.
end_membership move active,frozen ended | Let a member leave the club.

service museum | Works of art and who has borrowed them.
record artwork AR title
title mix(Blue|Broken|Sleeping|Distant, Horizon|Figure|Garden|River) | Title of the work.
artist person | Who made it.
hall int(1..30) | Where it hangs.
insured_for money(1000..90000) | Euros.
restorer person | Who cleans it.
states shown stored lent
find_artwork find | Look a work of art up by its title.
get_artwork get | Artist, hall, insured value and restorer of one work of art.
list_artworks list artist | Works of art, all or by one artist.
acquire_artwork create title,artist,hall,insured_for,restorer | Enter a work of art that was bought.
hang_artwork set hall | Show a work of art in another hall.
insure_artwork set insured_for | Insure a work of art for another sum.
commission_restorer set restorer | Have a work of art cleaned by somebody else.
lend_artwork move shown,stored lent | Let another museum show a work of art.
return_artwork move lent shown | Show a work of art again that was away.

service hotel | Reservations of hotel rooms.
record reservation RV guest
guest person | Who stays.
room_number int(100..599) | Which room.
arrival day | When they come.
nights int(1..14) | How long they stay.
rate money(50..400) | Euros a night.
states reserved checked_in checked_out cancelled
find_reservation find | Look a hotel guest's reservation up by name.
get_reservation get | Room, arrival, nights and price of one reservation.
list_reservations list arrival | Reservations, all or of one arrival day.
reserve_room create guest,room_number,arrival,nights,rate | Keep a hotel room for somebody.
change_hotel_room set room_number | Give a hotel guest another room.
lengthen_stay set nights | Let a hotel guest stay more or fewer nights.
set_room_rate set rate | Ask another price a night of a hotel guest.
check_in_guest move reserved checked_in | Give a hotel guest the key.
check_out_guest move checked_in checked_out | Take the key back from a hotel guest.
cancel_reservation move reserved cancelled | Drop a hotel reservation.

service events | Concerts and talks with tickets.
record event EV title
title mix(Spring|Midnight|Open-air|Charity, Concert|Reading|Gala|Debate) | Name of the event.
artist person | Who is on the stage.
city city | Where.
day day | When.
tickets_left int(0..400) | Tickets that can still be bought.
states on_sale sold_out called_off
find_event find | Look an event up by its name.
get_event get | Artist, city, day and remaining tickets of one event.
list_events list city | Events, all or in one city.
schedule_event create title,artist,city,day,tickets_left | Announce a new event.
sell_tickets take tickets_left | Sell tickets for an event.
release_tickets add tickets_left | Offer more tickets for an event.
move_event set day | Hold an event on another day.
rebook_artist set artist | Put somebody else on the stage.
call_event_off move on_sale,sold_out called_off | Announce that an event does not take place.
"""
